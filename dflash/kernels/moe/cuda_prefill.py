"""Experts in prefill on a GPU: grids and constants from shapes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np

from dflash.errors import KernelError
from dflash.kernels.arrays import GpuArray, Stream
from dflash.kernels.formats import FORMATS
from dflash.kernels.formats.cuda import PackedWeight
from dflash.kernels.gpu.capabilities import capabilities
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.gpu.launch import Bound
from dflash.kernels.moe import Experts
from dflash.kernels.moe.cuda import PLAIN, SPAN, SPAN_BYTES, MoeShape, check, data_of, filled, span_bytes
from dflash.kernels.moe.moe_kind import USUAL, MoeKind

AT_ONCE = 8192
"""Largest capacity of the scratch in rows; more rows are run in slices."""
MANY = 96
"""Rows of an expert, on average, from which a launch on Hopper has the items of many rows."""

_HERE = Path(__file__).parent
_PAIRS, _HOPPER_PAIRS, _MANY_PAIRS = 64, 96, 192  # rows of an item
_GROUPS = 4  # warpgroups of prefill_hopper.cu
_BLOCKS = (8, 2), (4, 2), (8, 1), (4, 1), (2, 1), (1, 1)  # warps and stages of prefill.cu, the best first
_STATIC_SHARED = 2048  # bytes
_LOGIT_STAGES, _LOGIT_STAGE = 4, 4 * 96 * 68  # of `logits` in prefill_router.cu: stages at most, and bytes of one


class PrefillScratch:
    """Intermediate arrays of a layer's experts; layers of one shape share them.

    rows: largest number of rows of a launch; the capacity is at most `AT_ONCE`.
    weights: weights of one of the layers, on the device.
    """

    def __init__(self, rows: int, weights: Experts) -> None:
        shape = MoeShape(weights)
        self.rows = rows = min(rows, AT_ONCE)
        pairs = rows * shape.slots
        items = max(shape.items(rows, n) * n for n in (_PAIRS, _HOPPER_PAIRS, _MANY_PAIRS))
        self.normed = cupy.empty((rows, shape.spans * SPAN_BYTES), np.uint8)
        self.exact = cupy.empty((rows, shape.width), np.float32)
        self.logits, self.shared_logits = cupy.empty((rows, shape.experts), np.float32), cupy.empty(rows, np.float32)
        self.experts, self.factors = cupy.empty((rows, shape.n_used), np.int32), cupy.empty((rows, shape.slots), np.float32)
        self.count, self.n_items = cupy.empty(shape.experts, np.int32), cupy.empty(1, np.int32)
        self.item_expert, self.item_pairs = cupy.empty(items // 64, np.int32), cupy.empty(items, np.int32)
        self.inner = cupy.empty((pairs, shape.inner_spans * SPAN_BYTES), np.uint8)
        self.product = cupy.empty((pairs, shape.width), np.float32)


def scratch_bytes(rows: int, width: int, inner: int, slots: int) -> int:
    """Return the bytes of the large arrays of a `PrefillScratch`: `slots` experts of a token, with `inner` hidden units."""
    spans, inner_spans = -(-width // SPAN), -(-inner // SPAN)
    row = spans * SPAN_BYTES + 4 * width + slots * (inner_spans * SPAN_BYTES + 4 * width)
    return min(rows, AT_ONCE) * row


class _Plan(NamedTuple):
    """Launches whose items have up to `pairs` rows: that makes the items, and projections with an item's blocks.

    A projection without blocks of an item has one block for each multiprocessor.
    """

    pairs: int
    group: Bound
    projections: tuple[tuple[Bound, int], ...]


class PrefillMoe:
    """A norm and the experts of a layer on fixed arrays, for any number of rows.

    stream, gain, weights, counts, eps: as for `dflash.kernels.moe.cuda.DecodeMoe`.
    hopper: use Hopper's warpgroup instructions; by default if device and types allow it.

    Computes the formula of `Moe`; with warpgroup instructions, weights are rounded to float16. A row has the same bits
    whichever other rows are in the launch. Seven launches for every `AT_ONCE` rows. An expert's weights are read once for
    64 of its rows, or 96 on Hopper, or 192 where experts have more than `MANY`.
    """

    def __init__(
        self,
        stream: Any,
        gain: GpuArray,
        weights: Experts,
        counts: GpuArray,
        scratch: PrefillScratch,
        *,
        eps: float,
        kind: MoeKind = USUAL,
        hopper: bool | None = None,
    ) -> None:
        self._shape, self._scratch = MoeShape(weights), scratch
        check(stream, gain, weights, self._shape)
        s, w, shape = scratch, filled(weights), self._shape
        into = w.gate, w.up, w.shared_gate, w.shared_up
        back = w.down, w.down, w.shared_down, w.shared_down
        self._hopper = _can_group(into, back) if hopper is None else hopper
        few = _HOPPER_PAIRS if self._hopper else _PAIRS
        stages = min(_LOGIT_STAGES, _room() // _LOGIT_STAGE)
        macros = kind.constants(weights)
        constants = shape.of_router() | macros["router"] | macros["topk"]
        constants |= {"STAGES": stages, "NORMED_ORDER": self._order(into)}

        def bind(entry: str, *args: Any, shared: int = 0, pairs: int = few) -> Bound:
            made = kernel(_HERE / "prefill_router.cu", entry, dependent=True, PAIRS=pairs, **constants)
            return made.bind((1, 1), 256, args, shared=shared)

        items = s.item_expert, s.item_pairs, s.n_items
        normed = s.normed, s.exact, s.shared_logits, s.count
        self._normalize = bind("normalize", stream, gain, w.shared_router, counts, 0, eps, *normed)
        self._logits = bind("logits", s.exact, w.router, counts, 0, s.logits, shared=stages * _LOGIT_STAGE)
        chosen = s.experts, s.factors, s.count
        self._choose = bind("topk", s.logits, s.shared_logits, counts, 0, 0, *chosen, *kind.selection(weights))

        def plan(pairs: int, bind_projection: Callable[..., tuple[Bound, int]]) -> _Plan:
            group = bind("expert_items", s.experts, s.count, counts, 0, 0, *items, pairs=pairs)
            gate_up = bind_projection(into, (s.normed, *items), self._order(back), macros["gate_up"], gated=True)
            return _Plan(pairs, group, (gate_up, bind_projection(back, (s.inner, *items), 0, {}, gated=False)))

        self._few = plan(few, self._bind)
        self._many = plan(_MANY_PAIRS, self._bind_many) if self._hopper and self._has_many(scratch.rows) else self._few
        out = stream if kind.out is None else kind.out
        combine = kernel(_HERE / "combine.cu", "combine", dependent=True, MODEL_DIM=shape.width, **shape.of_slots())
        self._combine = combine.bind((1, 1), 256, (s.product, s.factors, counts, 0, None, None, None, out))

    def __call__(self, n_rows: int, stream: Stream = None) -> None:
        """Run for the first `n_rows` rows, or `counts` if that is less; does not allocate or synchronise."""
        shape = self._shape
        for first in range(0, n_rows, self._scratch.rows):
            n = min(n_rows - first, self._scratch.rows)
            plan = self._many if self._has_many(n) else self._few
            self._normalize(stream, grid=n, first_row=first)
            self._logits(stream, grid=(-(-shape.experts // 64), -(-n // 32)), first_row=first)
            self._choose(stream, grid=-(-n // 8), first_row=first, n_here=n)
            plan.group(stream, grid=shape.experts + 1, first_row=first, n_here=n)
            for launch, blocks in plan.projections:
                launch(stream, grid=(blocks, shape.items(n, plan.pairs)) if blocks else capabilities().processors)
            self._combine(stream, grid=(-(-shape.width // 1024), n), first_row=first)

    def _has_many(self, n_rows: int) -> bool:
        return n_rows * self._shape.n_used > MANY * self._shape.experts

    def _order(self, weights: tuple[PackedWeight, ...]) -> int:
        """Return the element order of activations that some weights require."""
        return FORMATS[weights[0].type].run if self._hopper else 0

    def _bind(
        self,
        weights: tuple[PackedWeight, ...],
        args: tuple[Any, ...],
        inner_order: int,
        macros: dict[str, int],
        *,
        gated: bool,
    ) -> tuple[Bound, int]:
        """Return the launch of a projection, and its blocks for an item."""
        shape, kinds = self._shape, [w.type for w in weights]
        constants = self._constants(kinds, gated) | macros
        if self._hopper:
            rows, threads, source = (32 if gated else 64) * _GROUPS, 128 * _GROUPS, "prefill_hopper.cu"
            stage = _HOPPER_PAIRS * 2 * SPAN + -(-4 * _GROUPS * span_bytes(kinds) // 1024) * 1024
            stages = min(2, (_room() - 1024) // stage)
            shared = 1024 + stages * stage
            constants |= {"PAIRS": _HOPPER_PAIRS, "WARPGROUPS": _GROUPS, "BLOCKS_PER_SM": 1, "INNER_ORDER": inner_order}
        else:
            warps, stages, shared = _block(kinds)
            rows, threads, source = (16 if gated else 32) * warps, 32 * warps, "prefill.cu"
            constants |= {"PAIRS": _PAIRS, "WARPS": warps}
        made = kernel(_HERE / source, "prefill", dependent=True, STAGES=stages, **constants)
        blocks = -(-(shape.inner_spans * SPAN if gated else shape.width) // rows)
        return self._bound(made, threads, args, weights, shared), blocks

    def _bind_many(
        self,
        weights: tuple[PackedWeight, ...],
        args: tuple[Any, ...],
        inner_order: int,
        macros: dict[str, int],
        *,
        gated: bool,
    ) -> tuple[Bound, int]:
        """Return the launch of a projection for items of many rows."""
        kinds = [w.type for w in weights]
        others, stage = 2 * 8 * span_bytes(kinds) + (1 << 14) * gated + 4 * 4 * _MANY_PAIRS + 1024, 128 * _MANY_PAIRS
        stages = min(5, (_room() - others) // stage)
        constants = self._constants(kinds, gated) | macros
        constants |= {"PAIRS": _MANY_PAIRS, "STAGES": stages, "INNER_ORDER": inner_order}
        made = kernel(_HERE / "prefill_hopper_many.cu", "prefill_many", dependent=True, **constants)
        return self._bound(made, 384, args, weights, others + stages * stage), 0

    def _constants(self, kinds: list[str], gated: bool) -> dict[str, Any]:
        names = "FIRST", "SECOND", "SHARED_FIRST", "SHARED_SECOND"
        return self._shape.constants() | dict(zip(names, kinds, strict=True)) | {"GATED": int(gated)}

    def _bound(
        self, made: Any, threads: int, args: tuple[Any, ...], weights: tuple[PackedWeight, ...], shared: int
    ) -> Bound:
        s = self._scratch
        return made.bind((1, 1), threads, (*args, *data_of(weights), s.inner, s.product), shared=shared)


def _can_group(*projections: tuple[PackedWeight, ...]) -> bool:
    quantised = all(w.type not in PLAIN for weights in projections for w in weights)
    alike = all(len({FORMATS[w.type].run for w in weights}) == 1 for weights in projections)
    return capabilities().has_wgmma and quantised and alike


def _room() -> int:
    return capabilities().block_shared - _STATIC_SHARED


def _block(kinds: list[str]) -> tuple[int, int, int]:
    """Return warps of a block, spans in flight and bytes of shared memory: the largest that fit the device."""
    room = _room()
    of_warp = span_bytes(kinds[::2]) + span_bytes(kinds[1::2])
    for warps, stages in _BLOCKS:
        shared = stages * (_PAIRS * SPAN_BYTES + warps * of_warp)
        if shared <= room:
            return warps, stages, shared
    raise KernelError(f"experts of {', '.join(kinds)} need {shared} bytes of shared memory, the device has {room}")
