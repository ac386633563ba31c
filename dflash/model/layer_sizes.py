"""Sizes of each layer of a model whose layers differ: heads, window, cache, feed forward, and a rotation for each kind."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dflash.errors import FormatError, Unsupported
from dflash.model.config_sizes import MAX_BLOCKS, MAX_HEAD_SIZE, MAX_HEADS, MAX_WIDTH, RopeScaling
from dflash.model.gguf.architectures import Architecture
from dflash.model.gguf.keys import Keys
from dflash.model.gguf.part import TensorInfo


class LayerSizes(NamedTuple):
    """Sizes of one layer.

    window: tokens that a row attends to at most: itself and those before it. 0 for all.
    source: layer whose keys and values it reads; itself unless it has none of its own.
    ffn: inner size of the dense feed forward; 0 if the layer has experts instead.
    gate: elements of the gate of a token's attention: one for each query head, or for each of its elements; 0 for no gate.
    """

    heads: int
    kv_heads: int
    head_size: int
    window: int
    source: int
    ffn: int
    gate: int = 0


class Rotary(NamedTuple):
    """Settings of a rotary embedding, as those of `Config`."""

    n_rot: int
    rope_base: float
    rope_scaling: RopeScaling | None = None


def layer_sizes(keys: Keys, architecture: Architecture, n_blocks: int, tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    """Return the sizes of the layers, and the largest ones of any layer.

    Layers with a window and layers without one each have one head size and one rotation. The last layers may have no keys
    and values of their own: each reads those of the last layer of its kind that has some.
    """
    heads = keys.per_block("attention.head_count", n_blocks, low=1, high=MAX_HEADS)
    kv_heads = keys.per_block("attention.head_count_kv", n_blocks, low=1, high=MAX_HEADS)
    for n, n_kv in zip(heads, kv_heads, strict=True):
        if n % n_kv:
            raise keys.wrong("attention.head_count", n, f"a multiple of the {n_kv} KV heads of its block")
    windows = _windows(keys, architecture, n_blocks)
    size = _head_size(keys, "")
    window_size = _head_size(keys, "_swa") if "attention.key_length_swa" in keys else size
    ffn = _dense(keys, architecture, n_blocks)
    layers = tuple(
        LayerSizes(n, n_kv, window_size if window else size, window, source, inner)
        for n, n_kv, window, source, inner in zip(heads, kv_heads, windows, _sources(keys, windows), ffn, strict=True)
    )
    if architecture.head_gate:
        layers = tuple(layer._replace(gate=_gate(tensors, i, layer)) for i, layer in enumerate(layers))
    for layer in layers:
        if layers[layer.source].kv_heads != layer.kv_heads:
            raise keys.wrong("attention.head_count_kv", kv_heads, "the same in a block and in the one whose keys it reads")
    return {
        "layers": layers,
        "heads": max(heads),
        "kv_heads": max(kv_heads),
        "head_size": max(layer.head_size for layer in layers),
        "ffn": max(ffn),
        "rope_sections": (),
        "window_rotation": _rotation(keys, window_size, "_swa") if any(windows) else None,
        "logit_cap": keys.number("final_logit_softcapping", 0.0, low=0, high=1e6),
        "per_layer": keys.integer("embedding_length_per_layer_input", 0, low=0, high=MAX_WIDTH),
        **_rotation(keys, size)._asdict(),
    }


def _windows(keys: Keys, architecture: Architecture, n_blocks: int) -> tuple[int, ...]:
    name, period = "attention.sliding_window_pattern", architecture.window_period
    if period and not keys.integer("attention.sliding_window", 0, low=0):
        return (0,) * n_blocks
    if period and not isinstance(keys.value(name, period), np.ndarray):
        period = keys.integer(name, period)
        return tuple(keys.integer("attention.sliding_window") if i % period else 0 for i in range(n_blocks))
    slides = keys.integers(name, high=1)
    if len(slides) != n_blocks:
        raise keys.wrong(name, slides, f"an array of {n_blocks} truth values, one for each block")
    return tuple(keys.integer("attention.sliding_window") if slide else 0 for slide in slides)


def _dense(keys: Keys, architecture: Architecture, n_blocks: int) -> tuple[int, ...]:
    """Return the inner size of each layer's dense feed forward; in an architecture with experts, leading layers have one."""
    ffn = keys.per_block("feed_forward_length", n_blocks, low=1, high=MAX_WIDTH)
    n_dense = keys.integer("leading_dense_block_count", low=0, high=n_blocks) if architecture.experts else n_blocks
    return tuple(size if i < n_dense else 0 for i, size in enumerate(ffn))


def _gate(tensors: Mapping[str, TensorInfo], layer: int, sizes: LayerSizes) -> int:
    """Return the rows of a layer's gate: one for each query head, as without the tensor, or one for each element."""
    name, kinds = f"blk.{layer}.attn_gate.weight", (sizes.heads, sizes.heads * sizes.head_size)
    rows = tensors[name].shape[0] if name in tensors else sizes.heads
    if rows not in kinds:
        raise FormatError(f"tensor {name!r} has {rows} rows, must have {kinds[0]} or {kinds[1]}")
    return rows


def _head_size(keys: Keys, kind: str) -> int:
    size = keys.integer(f"attention.key_length{kind}", high=MAX_HEAD_SIZE)
    value_size = keys.integer(f"attention.value_length{kind}", size, high=MAX_HEAD_SIZE)
    if value_size != size:
        raise Unsupported(str(keys.wrong(f"attention.value_length{kind}", value_size, f"{size} as for keys")))
    return size


def _sources(keys: Keys, windows: tuple[int, ...]) -> list[int]:
    """Return the layer whose keys and values each layer reads."""
    n, name = len(windows), "attention.shared_kv_layers"
    own = n - keys.integer(name, 0, low=0, high=min(n - 1, MAX_BLOCKS))
    sources = list(range(own))
    for window in windows[own:]:
        source = next((i for i in range(own - 1, -1, -1) if bool(windows[i]) == bool(window)), None)
        if source is None:
            raise keys.wrong(name, n - own, "so small that a layer of each kind has keys of its own")
        sources.append(source)
    return sources


def _rotation(keys: Keys, head_size: int, kind: str = "") -> Rotary:
    """Return a rotation; a longer context scales only that of layers without a window."""
    name = f"rope.dimension_count{kind}"
    n_rot = keys.integer(name, head_size, high=head_size)
    if n_rot % 2:
        raise keys.wrong(name, n_rot, "even")
    scaling = None if kind else RopeScaling.from_keys(keys)
    base = keys.number(f"rope.freq_base{kind}", low=RopeScaling.smallest_base(scaling), high=1e12)
    return Rotary(n_rot, base, scaling)
