"""Launches of decode and prefill passes.

Launches of decode passes compute the same bits for a row in every batch. Launches of prefill passes are made for many rows.
"""

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from dflash.kernels.arrays import GpuArray
from dflash.kernels.attention import cuda as attention
from dflash.kernels.attention.cuda_fused_decode import RotateAttend
from dflash.kernels.delta import cuda as delta
from dflash.kernels.delta.state_copies import StateCopies
from dflash.kernels.exchange.signals import PeerLink
from dflash.kernels.formats.cuda import PackedWeight
from dflash.kernels.gpu import device
from dflash.kernels.gpu.batch import BatchArrays
from dflash.kernels.kv_types import head_size, is_quantized
from dflash.kernels.linear import cuda as linear
from dflash.kernels.linear import cuda_prefill
from dflash.kernels.moe import Experts
from dflash.kernels.moe import cuda as moe
from dflash.kernels.moe import cuda_prefill as moe_prefill
from dflash.kernels.moe.moe_kind import USUAL, MoeKind
from dflash.kernels.norm.cuda import RmsNorm
from dflash.kernels.norm.split import SplitNorm, carried
from dflash.kernels.ragged import PENDING
from dflash.kernels.rope.cuda import Rotate
from dflash.model.config import Config
from dflash.model.run.rules import applies

_ROWS = 32
"""Weights that are unpacked to float16 are padded to a multiple of this many rows."""

Op = Callable[[int], None]
Multiply = linear.DecodeLinear | cuda_prefill.PrefillLinear
Norm = RmsNorm | SplitNorm


class Ops:
    """Makes the launches of a pass; all layers share scratch memory.

    prefill: true if all spans are prefill spans; False if all are pending.
    empty: allocates the scratch memory of attention, whose content lasts as long as a pass, and that of a prefill.
    n_scratch: bytes of the scratch memory of a prefill; by default `scratch_bytes`.
    unpacked_bytes: memory for weights that stay unpacked for prefill.
    parts: batches of 64 consecutive rows each, which attention reads in passes of more than 64 pending rows.
    uploaded: whether the batch is complete before the pass starts, so that `attention_of_row` may be used.
    scratch: scratch memory of prefill on the device; its content lasts no longer than a layer.
    sequences: number of sequences that the grid of decode launches covers. A pass of more sequences is correct, but slower.
    longest: most rows of a sequence in the decode launches.
    splits_norms: whether the launches around a norm carry it. Experts contain the norm before them.
    reads_early: whether multiplies of one row may read what experts publish, before their launch has ended.
    copies: copies of recurrent states that a prefill pass makes.
    """

    def __init__(
        self,
        config: Config | None,
        batch: Any,
        *,
        prefill: bool,
        empty: Callable[[int], Any] = device.empty,
        n_scratch: int | None = None,
        unpacked_bytes: int = 0,
        parts: Sequence[BatchArrays] = (),
        uploaded: bool = False,
    ) -> None:
        self.batch, self.prefill, self._uploaded = batch, prefill, uploaded
        self.sequences, self.longest, self._parts = batch.max_sequences, PENDING, parts
        self.splits_norms = not prefill and applies("carried-norm")
        self.reads_early = self.splits_norms and applies("early-read")
        self.copies = StateCopies() if prefill else None
        self._launch: Any = linear.DecodeLinear
        self.scratch: list[Any] = []
        if prefill:
            assert config is not None, "a target model"
            n_scratch = n_scratch or scratch_bytes(config, batch.max_rows, batch.max_sequences)
            scratch = cuda_prefill.UnpackScratch(n_scratch, empty, kept=unpacked_bytes)
            self._launch = partial(cuda_prefill.PrefillLinear, scratch=scratch, int8=config.prefill == "int8")
            self.scratch.append(scratch.halves)
        self._attention = attention.Workspace(empty)
        self._unpacked: tuple[Any, Any] | None = None
        self._moe: Any = None
        self._read: GpuArray = None  # scratch memory of the delta rule's launches
        if prefill and config is not None and any(config.recurrent):
            sizes = batch.max_rows, *_delta_sizes(config)
            self._delta = delta.PromptScratch(*sizes, sequences=batch.max_sequences, memory=scratch.halves)

    def norm(self, space: SimpleNamespace, gain: GpuArray, eps: float, *, first: bool) -> Norm:
        """Return a norm of the stream into `normed`; the first norm of a pass has no preceding launch to carry it."""
        if self.splits_norms and not first:
            return SplitNorm(space.stream, gain, eps, half=space.normed, squares=space.squares)
        return RmsNorm(space.stream, gain, eps, half=space.normed)

    def multiply(
        self,
        x: GpuArray,
        weights: Sequence[PackedWeight],
        outs: Sequence[GpuArray],
        *,
        input_norm: Norm | None = None,
        output_norm: Norm | None = None,
        early: bool = False,
        **kind: Any,
    ) -> Multiply:
        """Return a launch of ``out = x @ W.T`` for each weight, or of what `kind` says (arguments of `DecodeLinear`).

        input_norm, output_norm: norm that made `x`, and norm that reads the sums next.
        early: experts run before, which publish `input_norm` or have cleared `x`; requires `reads_early`.
        """
        published = {"published": True} if early else {}
        return self._launch(x, weights, outs, **kind, **carried(input_norm=input_norm, output_norm=output_norm), **published)

    def delta(
        self,
        inputs: delta.Inputs,
        weights: delta.MixerWeights,
        memory: tuple[GpuArray, GpuArray],
        *,
        layer: int,
        link: PeerLink | None = None,
    ) -> Op:
        """Return a launch of convolution, delta rule and gated norm; `layer` counts the recurrent layers of the pass."""
        if self.prefill:
            return delta.Prompt(inputs, weights, self.batch, *memory, self._delta, copies=self.copies, layer=layer)
        fused = None if link or applies("gated-norm") else False
        step = delta.DeltaStep(inputs, weights, self.batch, *memory, fused=fused, link=link, read=self._read)
        self._read = step.read
        return lambda n: step(n, n_sequences=min(n, self.sequences), longest=self.longest)

    def attention(self, q: GpuArray, cache: tuple[GpuArray, GpuArray], out: GpuArray, gate: GpuArray) -> Op:
        """Return a launch of attention over a paged cache."""
        if self.prefill and is_quantized(cache[0]):
            return self._prefill_quantized(q, cache, out, gate)
        if self.prefill:
            return attention.Prefill(q, *cache, self.batch, out, gate=gate)

        def attend(start: int, batch: BatchArrays) -> attention.Attend:
            rows = slice(start, start + PENDING)
            gates = None if gate is None else gate[rows]
            return attention.Attend(q[rows], *cache, batch, out[rows], gate=gates, workspace=self._attention)

        parts = [(start, attend(start, batch)) for start, batch in zip(range(0, len(q), PENDING), self._parts, strict=False)]
        return PendingAttention(attend(0, self.batch), parts)

    def attention_of_row(self, rotate: Rotate, attend: Op) -> Callable[[], None] | None:
        """Return `rotate` and `attend` of one row as one op, if there is one."""
        if not self._uploaded or not isinstance(attend, PendingAttention) or not applies("rotate-attend"):
            return None
        return RotateAttend.of(rotate, attend.whole)

    def _prefill_quantized(self, q: GpuArray, cache: tuple[GpuArray, GpuArray], out: GpuArray, gate: GpuArray) -> Op:
        """Return a launch that unpacks the cache to float16 pages, which all layers share, then attends to these."""
        if self._unpacked is None:
            shape = *cache[0].shape[:3], head_size(cache[0])
            self._unpacked = device.empty(*shape, dtype=np.uint16), device.empty(*shape, dtype=np.uint16)
        unpack = attention.Unpack(*cache, self.batch, *self._unpacked)
        attend = attention.Prefill(q, *self._unpacked, self.batch, out, gate=gate)

        def launch(n: int) -> None:
            unpack()
            attend(n)

        return launch

    def experts(
        self,
        stream: Any,
        gain: GpuArray,
        weights: Experts[PackedWeight],
        eps: float,
        *,
        output_norm: Norm | None,
        clears: GpuArray = None,
        kind: MoeKind = USUAL,
    ) -> Op:
        """Return a launch of norm and experts, which adds to the stream; `output_norm` reads it, `clears` is read early."""
        scratch, experts = (
            (moe_prefill.PrefillScratch, moe_prefill.PrefillMoe) if self.prefill else (moe.DecodeScratch, moe.DecodeMoe)
        )
        if self._moe is None:
            self._moe = scratch(self.batch.max_rows, weights)
            self.scratch += [self._moe.product] if self.prefill else []
        settings: dict[str, Any] = carried(output_norm=output_norm) | ({} if clears is None else {"clears": clears})
        return experts(stream, gain, weights, self.batch.counts, self._moe, eps=eps, kind=kind, **settings)


class PendingAttention:
    """Attention of a decode pass.

    whole: for up to 64 rows.
    parts: first row, and attention of up to 64 rows from there, for passes of more rows.
    """

    def __init__(self, whole: attention.Attend, parts: list[tuple[int, attention.Attend]]) -> None:
        self.whole, self._parts = whole, parts

    def __call__(self, n: int) -> None:
        """Launch for `n` rows."""
        if n <= PENDING:
            self.whole(n)
            return
        for start, part in self._parts:
            if n > start:
                part(min(n - start, PENDING))


def spare_bytes() -> int:
    """Return the bytes of device memory in which the weights of a draft model may stay unpacked: a 16th of what is free."""
    return device.free_memory() // 16


def scratch_bytes(config: Config, rows: int, sequences: int) -> int:
    """Return the bytes of scratch memory that the layers of a prefill pass of `rows` rows and `sequences` sequences need.

    Matrix multiplies unpack their weights there: all weights of the largest launch, up to `cuda_prefill.SCRATCH_BYTES`; and
    with int8 tokens. The delta rule uses the same memory between them.
    """
    values = config.delta_value_heads * config.delta_size
    linear = 2 * config.delta_key_heads * config.delta_size + 2 * values + 2 * config.delta_value_heads
    head = config.heads * config.head_size
    full = 2 * (head + config.kv_heads * config.head_size)
    step = 256 if config.prefill == "int8" else 1  # rows of int8 weights have whole blocks
    tall = max(linear, full, 2 * max(config.ffn, config.shared_ffn), 256) + 4 * _ROWS
    narrow = max(values, head, config.ffn, config.shared_ffn)
    width, narrow = (-(-n // step) * step for n in (config.width, narrow))
    largest = 2 * max(tall * width, max(width + 4 * _ROWS, 256) * narrow)
    of_delta = delta.scratch_bytes(rows, *_delta_sizes(config), sequences=sequences) if any(config.recurrent) else 0
    tokens = cuda_prefill.quantized_bytes(rows, max(width, narrow)) if config.prefill == "int8" else 0
    return max(min(cuda_prefill.SCRATCH_BYTES, largest) + tokens, of_delta)


def _delta_sizes(config: Config) -> tuple[int, int, int, int]:
    return config.delta_key_heads, config.delta_value_heads, config.delta_size, config.delta_size
