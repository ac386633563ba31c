"""Memory that sequences of a model take, and the number of KV pages that fit."""

import os
from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from dflash.errors import RequestError
from dflash.kernels.kv_types import kv_types
from dflash.kernels.ragged import PAGE
from dflash.model.config import Config
from dflash.model.gguf.part import TensorInfo
from dflash.model.loading.free_memory import free_memory
from dflash.model.loading.settings import LoadSettings

CONVERSATIONS = 4
"""Conversations for each sequence at a time whose full contexts fit the KV pages of a GPU with the default prefix cache.

While an agent's tool runs, others decode. Of what 32 agents with 8 sequences of a 27B could find in the cache (simulated),
they find 98 % with such pages on an H200, none with pages for a full context of each sequence; answers come three times as
fast."""


class Need(NamedTuple):
    """Bytes that sequences take beside the weights.

    pending: inputs of a sequence's pending rows, stored until the next forward applies the accepted ones; in proportion to
        ``config.pending``.
    unpacked: values of a quantized page of one layer in float16, which prefill passes on a GPU read; 0 if nothing is
        quantized.
    """

    page: int
    state: int
    pending: int
    unpacked: int = 0

    @classmethod
    def of(cls, config: Config, kv: str) -> "Need":
        """Compute the bytes from the sizes of a model; `kv` names the types of keys and values."""
        n_recurrent = sum(config.recurrent)
        rows = [heads * sum(kind.head_bytes(size) for kind in kv_types(kv)) for heads, size in config.kv_shapes.values()]
        keys = config.delta_key_heads * config.delta_size
        values = config.delta_value_heads * config.delta_size
        channels = 2 * keys + values
        state = values * config.delta_size + (config.conv_width - 1) * channels
        pending = 2 * config.pending * (channels + keys + values + config.delta_value_heads)
        return cls(
            page=PAGE * sum(rows),
            state=4 * n_recurrent * state,
            pending=4 * n_recurrent * pending,
            unpacked=4 * PAGE * config.kv_heads * config.head_size if any(kind.extra for kind in kv_types(kv)) else 0,
        )


def n_pages(config: Config, settings: LoadSettings, room: int | None = None) -> tuple[int, int]:
    """Choose the number of KV pages to allocate.

    settings: a given `context` fits one sequence, None is the model's own limit or less if that does not fit; the full
        contexts of all `sequences` need not fit at once. A given `kv_bytes` is used instead of a share of the memory.
    room: bytes of GPU memory available for pages. If None, sequences get half of the machine's free memory.

    Host memory of pages that no sequence reaches is never touched, so that it costs nothing. GPU memory is allocated at
    once. There all pages together take three quarters of `room`, or a quarter without a given `context`, or one full context
    if that is more; states of the prefix cache take the rest. Fewer suffice for the full contexts of all sequences, with the
    default prefix cache for `CONVERSATIONS` times as many.
    """
    context, sequences, kv_bytes = settings.context, settings.sequences, settings.kv_bytes
    if context is not None and context > config.context:
        raise RequestError(f"context is {context}, the model was trained for {config.context} tokens")
    need = Need.of(config, settings.kv)
    page = need.page + (0 if room is None else need.unpacked)
    if kv_bytes is not None and need.page:
        texts = sequences * (need.state + need.pending)
        most = free_memory() - texts if room is None else room * need.page // page
        _check_kv_bytes(kv_bytes, need.page, context, most)
        return kv_bytes // need.page, min(context or config.context, kv_bytes // need.page * PAGE)
    budget = free_memory() // 2 - sequences * (need.state + need.pending) if room is None else room
    fit = max(budget // page, 0) if page else sequences * config.context
    wanted = -(-(context or config.context) // PAGE)
    if context is not None and wanted > fit:
        whose = "half of the free memory is" if room is None else "the memory left on the GPU is"
        raise RequestError(
            f"context is {context}: its KV cache takes {wanted * page >> 20} MiB, {whose} {max(budget, 0) >> 20} MiB"
        )
    wanted = max(min(wanted, fit), 1)
    pages = min(wanted * sequences, max(fit, wanted))
    if room is not None:
        pages *= CONVERSATIONS if settings.prefix_cache is True else 1
        pages = max(wanted, min(pages, fit // 4 if context is None else fit * 3 // 4))
    return pages, min(context or config.context, wanted * PAGE)


def block_of(name: str) -> int | None:
    """Return the number of the block to which a tensor belongs, if any."""
    kind, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    return int(number) if kind == "blk" and number.isdecimal() else None


def unpacked_size(config: Config, tensors: Iterable[TensorInfo]) -> int:
    """Return the bytes that the weights of prefill multiplies take when unpacked: rows in 32s, as int8 in blocks of 256."""
    total = 0
    for tensor in tensors:
        block = block_of(tensor.name)
        if block is not None and block < config.n_layers and len(tensor.shape) == 2 and tensor.name.endswith("weight"):
            rows, width = -(-tensor.shape[0] // 32) * 32, tensor.shape[1]
            is_int8 = config.prefill == "int8" and tensor.n_bytes < 2 * prod(tensor.shape)
            total += rows * (-(-width // 256) * 256 if is_int8 else 2 * width)
    return total


def kept_unpacked(config: Config, settings: LoadSettings, size: int, room: int, page: int) -> int:
    """Return the bytes of GPU memory for weights that stay unpacked.

    size: bytes that all take.
    room: bytes available for them and for KV pages, of which each takes `page` bytes.

    The KV cache that the settings ask for, or a full context, comes before them. Unless the settings limit them, they take
    at most half of `room`, and nothing if less than half of them would fit.
    """
    pages, own = -(-(settings.context or config.context) // PAGE), Need.of(config, settings.kv).page
    if settings.kv_bytes is not None and own:
        pages = settings.kv_bytes // own
    left = max(0, room - pages * page)
    if settings.unpacked_bytes is not None:
        return min(size, left, settings.unpacked_bytes)
    most = min(left, room // 2)
    return min(size, most) if 2 * most >= size else 0


def _check_kv_bytes(kv_bytes: int, page: int, context: int | None, room: int) -> None:
    least = -(-(context or 1) // PAGE) * page
    if kv_bytes < least:
        whose = f"one page of {PAGE} tokens" if context is None else f"a context of {context} tokens"
        raise RequestError(f"kv_bytes is {kv_bytes}: {whose} takes {least} bytes, give at least that")
    if kv_bytes > room:
        raise RequestError(
            f"kv_bytes is {kv_bytes}: only {max(room, 0)} bytes are free beside the weights, give at most that"
        )


def n_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
