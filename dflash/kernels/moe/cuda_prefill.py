"""Experts in prefill on a GPU: grids and constants from shapes."""

from pathlib import Path
from typing import Any

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

_HERE = Path(__file__).parent
_PAIRS, _HOPPER_PAIRS = 64, 128  # rows of an item; 64 on Hopper, too, if gate and up have different types
_BLOCKS = (8, 2), (4, 2), (8, 1), (4, 1), (2, 1), (1, 1)  # warps and stages of prefill.cu, the best first
_STATIC_SHARED = 2048  # bytes
_LOGIT_STAGES, _LOGIT_LINE = 4, 4 * 68  # of `logits` in prefill_router.cu: stages at most, and bytes of a row of one
_LOGIT_ROWS, _MANY_LOGIT_ROWS = 32, 128  # of a block of `logits` and `logits_many`


class PrefillScratch:
    """Intermediate arrays of a layer's experts; layers of one shape share them.

    rows: largest number of rows of a launch; the capacity is at most `AT_ONCE`.
    weights: weights of one of the layers, on the device.
    """

    def __init__(self, rows: int, weights: Experts) -> None:
        shape = MoeShape(weights)
        self.rows = rows = min(rows, AT_ONCE)
        pairs = rows * shape.slots
        items = max(shape.items(rows, n) * n for n in (_PAIRS, _HOPPER_PAIRS))
        self.normed = cupy.empty((rows, shape.spans * SPAN_BYTES), np.uint8)
        self.exact = cupy.empty((rows, shape.width), np.float32)
        self.logits, self.shared_logits = cupy.empty((rows, shape.experts), np.float32), cupy.empty(rows, np.float32)
        self.experts, self.factors = cupy.empty((rows, shape.n_used), np.int32), cupy.empty((rows, shape.slots), np.float32)
        self.count, self.n_items = cupy.empty(shape.experts, np.int32), cupy.empty(2, np.int32)
        self.item_expert, self.item_pairs = cupy.empty(items // 64, np.int32), cupy.empty(items, np.int32)
        self.inner = cupy.empty((pairs, shape.inner_spans * SPAN_BYTES), np.uint8)
        self.product = cupy.empty((pairs, shape.width), np.float32)


def scratch_bytes(rows: int, width: int, inner: int, slots: int) -> int:
    """Return the bytes of the large arrays of a `PrefillScratch`: `slots` experts of a token, with `inner` hidden units."""
    spans, inner_spans = -(-width // SPAN), -(-inner // SPAN)
    row = spans * SPAN_BYTES + 4 * width + slots * (inner_spans * SPAN_BYTES + 4 * width)
    return min(rows, AT_ONCE) * row


class PrefillMoe:
    """A norm and the experts of a layer on fixed arrays, for any number of rows.

    stream, gain, weights, counts, eps: as for `dflash.kernels.moe.cuda.DecodeMoe`.
    hopper: use Hopper's warpgroup instructions; by default if device and types allow it.

    Computes the formula of `Moe`; with warpgroup instructions, weights are rounded to float16. A row has the same bits
    whichever other rows are in the launch. Seven launches for every `AT_ONCE` rows, on Hopper one more for each
    projection of a shared expert with another type. An expert's weights are read once for 64 or 128 of its rows.
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
        alike = w.gate.type == w.up.type and w.shared_gate.type == w.shared_up.type
        self._pairs = _HOPPER_PAIRS if self._hopper and alike else _PAIRS
        lines = [_LOGIT_LINE * (rows + 64) for rows in (_LOGIT_ROWS, _MANY_LOGIT_ROWS)]
        stages, many_stages = (min(_LOGIT_STAGES, _room() // line) for line in lines)
        macros = kind.constants(weights)
        constants = shape.of_router() | macros["router"] | macros["topk"]
        constants |= {"PAIRS": self._pairs, "NORMED_ORDER": self._order(into)}
        constants |= {"STAGES": stages, "MANY_STAGES": max(2, many_stages)}

        def bind(entry: str, *args: Any, shared: int = 0) -> Bound:
            made = kernel(_HERE / "prefill_router.cu", entry, dependent=True, **constants)
            return made.bind((1, 1), 256, args, shared=shared)

        items = s.item_expert, s.item_pairs, s.n_items
        normed = s.normed, s.exact, s.shared_logits, s.count
        self._normalize = bind("normalize", stream, gain, w.shared_router, counts, 0, eps, *normed)
        logits = s.exact, w.router, counts, 0, s.logits
        self._logits = bind("logits", *logits, shared=stages * lines[0])
        self._many_logits = bind("logits_many", *logits, shared=many_stages * lines[1]) if many_stages > 1 else None
        chosen = s.experts, s.factors, s.count
        self._choose = bind("topk", s.logits, s.shared_logits, counts, 0, 0, *chosen, *kind.selection(weights))
        self._group = bind("expert_items", s.experts, s.count, counts, 0, 0, *items)
        bind_projection = self._bind_hopper if self._hopper else self._bind
        self._projections = [
            *bind_projection(into, (s.normed, *items), macros["gate_up"] | {"INNER_ORDER": self._order(back), "GATED": 1}),
            *bind_projection(back, (s.inner, *items), {"INNER_ORDER": 0, "GATED": 0}),
        ]
        out = stream if kind.out is None else kind.out
        combine = kernel(_HERE / "combine.cu", "combine", dependent=True, MODEL_DIM=shape.width, **shape.of_slots())
        self._combine = combine.bind((1, 1), 256, (s.product, s.factors, counts, 0, None, None, None, out))

    def __call__(self, n_rows: int, stream: Stream = None) -> None:
        """Run for the first `n_rows` rows, or `counts` if that is less; does not allocate or synchronise."""
        shape = self._shape
        for first in range(0, n_rows, self._scratch.rows):
            n = min(n_rows - first, self._scratch.rows)
            self._normalize(stream, grid=n, first_row=first)
            self._route(n, first, stream)
            self._choose(stream, grid=-(-n // 8), first_row=first, n_here=n)
            self._group(stream, grid=shape.experts + 1, first_row=first, n_here=n)
            for launch, blocks in self._projections:
                launch(stream, grid=(blocks, shape.items(n, self._pairs)) if blocks else capabilities().processors)
            self._combine(stream, grid=(-(-shape.width // 1024), n), first_row=first)

    def _route(self, n_rows: int, first_row: int, stream: Stream) -> None:
        """Compute the logits: by blocks of many rows, if these occupy most of the device."""
        across, many = -(-self._shape.experts // 64), self._many_logits
        if many is not None and across * (n_rows // _MANY_LOGIT_ROWS) > 3 * capabilities().processors // 4:
            many(stream, grid=(across, -(-n_rows // _MANY_LOGIT_ROWS)), first_row=first_row)
        else:
            self._logits(stream, grid=(across, -(-n_rows // _LOGIT_ROWS)), first_row=first_row)

    def _order(self, weights: tuple[PackedWeight, ...]) -> int:
        """Return the element order of activations that some weights require."""
        return FORMATS[weights[0].type].run if self._hopper else 0

    def _bind(
        self, weights: tuple[PackedWeight, ...], args: tuple[Any, ...], constants: dict[str, Any]
    ) -> list[tuple[Bound, int]]:
        """Return the launch of a projection, and its blocks for an item."""
        kinds, gated = [w.type for w in weights], constants["GATED"]
        warps, stages, shared = _block(kinds)
        constants |= dict(zip(("FIRST", "SECOND", "SHARED_FIRST", "SHARED_SECOND"), kinds, strict=True))
        made = self._bound("prefill.cu", 32 * warps, args, weights, constants | {"WARPS": warps, "STAGES": stages}, shared)
        outs, rows = (self._shape.inner_spans * SPAN, 16 * warps) if gated else (self._shape.width, 32 * warps)
        return [(made, -(-outs // rows))]

    def _bind_hopper(
        self, weights: tuple[PackedWeight, ...], args: tuple[Any, ...], constants: dict[str, Any]
    ) -> list[tuple[Bound, int]]:
        """Return the launches of a projection, a block for each multiprocessor: two if a shared expert has other types."""
        kinds, launches = [w.type for w in weights], []
        for only, (first, second) in enumerate((kinds[:2], kinds[2:], kinds[:2])):
            if (kinds[:2] == kinds[2:]) != (only == 0):
                continue
            others = 2 * 16 * span_bytes([first, second]) + (constants["GATED"] << 14) + 5 * 4 * self._pairs + 1024
            stages = min(8, (_room() - others) // (128 * self._pairs))
            own = constants | {"FIRST": first, "SECOND": second, "ONLY": only, "STAGES": stages}
            made = self._bound("prefill_hopper.cu", 640, args, weights, own, others + stages * 128 * self._pairs)
            launches.append((made, 0))
        return launches

    def _bound(
        self,
        source: str,
        threads: int,
        args: tuple[Any, ...],
        weights: tuple[PackedWeight, ...],
        constants: Any,
        shared: int,
    ) -> Bound:
        s = self._scratch
        constants = self._shape.constants() | constants | {"PAIRS": self._pairs}
        made = kernel(_HERE / source, "prefill", dependent=True, **constants)
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
