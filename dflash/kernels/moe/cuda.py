"""Experts on a GPU: grids and constants from shapes."""

from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np

from dflash.errors import KernelError
from dflash.kernels.arrays import GpuArray, Stream
from dflash.kernels.formats import FORMATS
from dflash.kernels.formats.cuda import PackedWeight, tile_bytes, tile_width
from dflash.kernels.gpu.capabilities import capabilities
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.gpu.launch import Bound
from dflash.kernels.moe import Experts
from dflash.kernels.moe.moe_kind import USUAL, MoeKind
from dflash.kernels.norm.split import SplitNorm

MOST_ROWS = 64
"""Largest number of rows of a decode launch."""
FEW = 4
"""Rows up to which every row reads its experts separately, and the down projection adds to the residual stream directly."""
SPAN, SPAN_BYTES = 256, 576
"""Values of a span, a part of a token's activations between two launches; and its bytes."""

_HERE = Path(__file__).parent
_MATRICES = set(Experts._fields) - {"n_used", "routing"}
_PAIRS, _WARPS, _STRIPES = 4, 8, 2  # pairs of an item; warps of a block of `down`; stripes of 16 weight rows of a warp
_ROUTERS = (1, 1, 2), (2, 2, 2), (4, 4, 2), (8, 4, 4), (16, 4, 8), (32, 8, 8), (64, 16, 8)
"""Largest number of rows of a launch; rows and logits of a block of router.cu then, the fastest in measurements."""
_HELD = 16  # float4 of the router's weights that a thread of router.cu holds
PLAIN = "F32", "F16", "BF16"
"""Formats whose weights are not quantised."""
_ROUTER_STATIC = 4096  # bytes; router.cu declares 2368
_RESERVED, _LARGE = 1024, 80 * 1024  # bytes: static shared memory of a block; spans of all warps that halve the warps


class DecodeTuning(NamedTuple):
    """Compile-time settings of a kernel besides shapes: blocks of a multiprocessor, and spans in flight for each warp."""

    blocks: int
    depth: int


GATE_UP, GATE_UP_FEW, DOWN = DecodeTuning(3, 1), DecodeTuning(3, 1), DecodeTuning(2, 2)


class MoeShape:
    """Sizes that the kernels of a layer are compiled for."""

    def __init__(self, weights: Experts) -> None:
        self.experts, self.width = weights.router.shape
        self.ffn = prod(weights.gate.shape[:-1]) // self.experts
        self.shared_ffn = weights.shared[1].shape[0] if weights.shared else self.ffn
        self.n_used, self.n_shared = weights.n_used, 1 if weights.shared else 0
        self.slots = self.n_used + self.n_shared
        self.spans = -(-self.width // SPAN)
        self.inner_spans = -(-max(self.ffn, self.shared_ffn) // SPAN)

    def items(self, n_rows: int, pairs: int) -> int:
        """Return the largest number of items of `n_rows` rows; an item is an expert with up to `pairs` of its rows."""
        chosen = n_rows * self.n_used
        return min(chosen, self.experts + chosen // pairs) + self.n_shared * -(-n_rows // pairs)

    def constants(self) -> dict[str, int]:
        """Return the sizes as macros."""
        return self.of_router() | {"FFN_DIM": self.ffn, "SHARED_FFN_DIM": self.shared_ffn}

    def of_router(self) -> dict[str, int]:
        """Return the sizes that the router depends on as macros."""
        return {"MODEL_DIM": self.width, "EXPERTS": self.experts} | self.of_slots()

    def of_slots(self) -> dict[str, int]:
        """Return the experts of a token as macros."""
        return {"N_USED": self.n_used, "N_SHARED": self.n_shared}


class DecodeScratch:
    """Intermediate arrays of a layer's experts; layers of one shape share them.

    rows: capacity in rows.
    weights: weights of one of the layers, on the device.
    """

    def __init__(self, rows: int, weights: Experts) -> None:
        shape = MoeShape(weights)
        self.rows, pairs, items = rows, rows * shape.slots, shape.items(rows, _PAIRS)
        self.normed = cupy.empty((rows, shape.spans * SPAN_BYTES), np.uint8)
        self.logits = cupy.empty((rows, shape.experts + shape.n_shared), np.float32)
        # EMPTY of early_read.cuh; the launches of few rows clear them again
        self.few_logits = cupy.full((FEW, shape.experts + shape.n_shared), 2**32 - 1, np.uint32).view(np.float32)
        self.experts = cupy.empty((rows, shape.n_used), np.int32)
        self.factors = cupy.empty((rows, shape.slots), np.float32)
        self.item_expert, self.item_pairs = cupy.empty(items, np.int32), cupy.empty((items, _PAIRS), np.int32)
        self.n_items, self.arrived = cupy.empty(1, np.int32), cupy.zeros(1, np.int32)
        self.inner = cupy.empty((pairs, shape.inner_spans * SPAN_BYTES), np.uint8)
        self.product = cupy.empty((pairs, shape.width), np.float32)


class DecodeMoe:
    """A norm and the experts of a layer on fixed arrays, for up to 64 rows.

    stream: float32 (T, D); residual stream that the result is added to.
    weights: weights on the device: `PackedWeight` of any native types; `router` and `shared_router` are float32 arrays.
    counts: int32 (1 or more,); its first entry is the actual number of rows, on the device. Rows beyond are skipped. It is
        read before the previous kernel has ended, as the batch of a pass may be.
    output_norm: norm of the stream after them; its `half` and `squares` are written, up to `FEW` rows as `publishes` says.
    clears: float16 (T, N), optional; array whose first row is cleared, up to `FEW` rows: a later launch publishes it
        (``early_read.cuh``).
    publishes: launches of up to `FEW` rows publish `output_norm` and clear `clears`.

    ``x = stream * gain / sqrt(mean(stream ** 2) + eps)``, then as `dflash.kernels.moe.Moe`. The router and the selection
    are float32; the experts' inputs are rounded to float16. Three launches up to `FEW` rows, else and with
    another `kind` five. A row has the same bits whichever other rows are in the launch. Each selected expert is read once
    for four of its rows. One row reads 9 experts: 16 MB for D 2048, F 512 and four bits a weight.
    """

    def __init__(
        self,
        stream: GpuArray,
        gain: GpuArray,
        weights: Experts,
        counts: GpuArray,
        scratch: DecodeScratch,
        *,
        eps: float,
        output_norm: SplitNorm | None = None,
        clears: GpuArray = None,
        kind: MoeKind = USUAL,
    ) -> None:
        self._shape = shape = MoeShape(weights)
        check(stream, gain, weights, shape)
        if not 0 < scratch.rows <= min(MOST_ROWS, len(stream)):
            raise KernelError(f"experts: a decode launch has 1 to {min(MOST_ROWS, len(stream))} rows, got {scratch.rows}")
        s, w, self._processors = scratch, filled(weights), capabilities().processors
        given = stream, gain, w.router, w.shared_router, counts, eps, s.normed, s.logits
        macros = kind.constants(weights)
        self._few = 0 if any(macros.values()) else FEW
        self.publishes = self._few > 0
        norm = (None,) * 3 if output_norm is None else (output_norm.weight, output_norm.half, output_norm.squares)
        later = clears, 0 if clears is None else clears[:1].nbytes
        few = *given[:-1], s.few_logits, s.inner, s.experts, s.factors, *norm[1:], *later
        many = *given, *(None,) * 6, 0
        of_router = shape.constants() | macros["router"]
        self._routers = [
            (most, *_router(shape, n, outs, few if most <= self._few else many, of_router)) for most, n, outs in _ROUTERS
        ]
        small = {"EXPERTS": shape.experts} | shape.of_slots() | macros["topk"]
        items = s.item_expert, s.item_pairs, s.n_items
        plan = kernel(_HERE / "expert_items.cu", "expert_items", dependent=True, **small)
        chosen = s.experts, s.factors, *items, s.arrived, *kind.selection(weights)
        self._plan = plan.bind(1, 512, (s.logits, counts, s.rows, *chosen))
        into = w.gate, w.up, w.shared_gate, w.shared_up
        self._gate_up, self._gate_up_blocks = _gate_up(shape, into, (s.normed, *items, *into, s.inner), macros["gate_up"])
        args: tuple[Any, ...] = s.inner, *items, w.down, w.shared_down, s.product
        self._down, self._down_blocks = _down(shape, args, few=False)
        out = stream if kind.out is None else kind.out
        if self._few:
            args = s.normed, s.few_logits, counts, *into, s.inner, s.experts, s.factors, w.down, w.shared_down
            args = *args, w.down.data.nbytes // shape.experts, w.shared_down.data.nbytes
            self._gate_up_few = _gate_up_few(shape, into, args)
            args = s.inner, s.experts, s.factors, counts, w.down, w.shared_down, *norm, out, s.few_logits
            self._down_few, _ = _down(shape, args, few=True)
        combine = kernel(_HERE / "combine.cu", "combine", dependent=True, MODEL_DIM=shape.width, **shape.of_slots())
        self._combine = combine.bind((1, 1), 256, (s.product, s.factors, counts, 0, *norm, out))

    def __call__(self, n_rows: int, stream: Stream = None) -> None:
        """Run for the first `n_rows` rows, or `counts` if that is less; does not allocate or synchronise.

        Up to `FEW` rows, `counts` must not exceed `n_rows`: logits of rows beyond would not be cleared for the next call.
        """
        shape, processors = self._shape, self._processors
        _, router, rows, outs = next(r for r in self._routers if n_rows <= r[0])
        router(stream, grid=(-(-(shape.experts + shape.n_shared) // outs), -(-n_rows // rows)))
        if n_rows <= self._few:
            self._gate_up_few(stream, grid=(shape.inner_spans * 16, n_rows * shape.slots))
            self._down_few(stream, grid=(shape.width // 16, n_rows))
        else:
            self._plan(stream, grid=-(-n_rows // 16), most_rows=n_rows)
            self._gate_up(stream, grid=processors * self._gate_up_blocks)
            self._down(stream, grid=processors * self._down_blocks)
            self._combine(stream, grid=(-(-shape.width // 1024), n_rows))


def upload(weights: Experts) -> Experts:
    """Copy a layer's experts to the device."""

    def uploaded(name: str, weight: Any) -> Any:
        return cupy.asarray(weight.unpacked()) if name in ("router", "shared_router") else PackedWeight(weight)

    routing = weights.routing and weights.routing._replace(bias=cupy.asarray(weights.routing.bias))
    matrices = {name: weight for name, weight in weights._asdict().items() if weight is not None and name in _MATRICES}
    return weights._replace(**{name: uploaded(name, weight) for name, weight in matrices.items()}, routing=routing)


def filled(weights: Experts) -> Any:
    """Return the weights; what is missing of a shared expert is that of the routed ones, as addresses without a use."""
    if weights.shared:
        return weights if weights.shared_router is not None else weights._replace(shared_router=weights.router)
    w = weights
    return w._replace(shared_router=w.router, shared_gate=w.gate, shared_up=w.up, shared_down=w.down)


def check(stream: GpuArray, gain: GpuArray, weights: Experts, shape: MoeShape) -> None:
    """Check that the weights fit each other and the rows."""
    name = weights.gate.name
    if stream.shape[1:] != (shape.width,) or gain.shape != (shape.width,):
        raise KernelError(f"{name}: experts of width {shape.width} don't fit rows {stream.shape} and a gain {gain.shape}")
    shared_ffn = shape.shared_ffn
    shared = ((shared_ffn, shape.width), (shared_ffn, shape.width), (shape.width, shared_ffn)) if weights.shared else ()
    for weight, (rows, width) in (
        (weights.gate, (shape.experts * shape.ffn, shape.width)),
        (weights.up, (shape.experts * shape.ffn, shape.width)),
        (weights.down, (shape.experts * shape.width, shape.ffn)),
        *zip((weights.shared or ())[1:], shared, strict=True),
    ):
        if (prod(weight.shape[:-1]), weight.shape[-1]) != (rows, width):
            raise KernelError(f"{weight.name}: wanted {rows} rows of {width} in all, got {weight.shape}")


def data_of(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace every `PackedWeight` by its array; keep other arguments."""
    return tuple(a.data if isinstance(a, PackedWeight) else a for a in args)


def span_bytes(kinds: list[str]) -> int:
    """Return the bytes of `SPAN` columns of 16 weight rows, for the type that takes most."""
    return max(SPAN // tile_width(kind) * tile_bytes(kind) for kind in kinds)


def _router(
    shape: MoeShape, rows: int, outs: int, args: tuple[Any, ...], constants: dict[str, int]
) -> tuple[Bound, int, int]:
    """Return launch, rows and logits of a router block: rows fit shared memory, the weights of the logits fit registers."""
    while rows > 1 and 4 * rows * shape.width > capabilities().block_shared - _ROUTER_STATIC:
        rows //= 2
    outs = max(2, min(outs, 2 * _HELD // -(-shape.width // 512)))
    made = kernel(_HERE / "router.cu", "router", dependent=True, OUTS=outs, ROWS=rows, **constants)
    return made.bind((1, 1), 256, args, shared=4 * rows * shape.width), rows, outs


def _kinds(weights: tuple[PackedWeight, ...]) -> dict[str, str]:
    return {name: w.type for name, w in zip(("GATE", "UP", "SHARED_GATE", "SHARED_UP"), weights, strict=True)}


def _piece(kinds: dict[str, str]) -> int:
    """Return the bytes of a span of 16 rows of a gate and an up projection."""
    return max(sum(span_bytes([kinds[shared + part]]) for part in ("GATE", "UP")) for shared in ("", "SHARED_"))


def _gate_up(
    shape: MoeShape, weights: tuple[PackedWeight, ...], args: tuple[Any, ...], macros: dict[str, int]
) -> tuple[Bound, int]:
    kinds = _kinds(weights)
    piece, others = _piece(kinds), shape.spans * (2 * 2 * 512 + _PAIRS * SPAN_BYTES)
    light = all(FORMATS[kind].is_light for kind in kinds.values())
    settings = GATE_UP if light else GATE_UP._replace(blocks=2)
    blocks, depth = _fitting(settings, list(kinds.values()), shape.spans * piece, others)
    shared = others + -(-shape.spans * depth * 8 // 128) * 128 + shape.spans * depth * piece
    constants = shape.constants() | kinds | {"STAGES": depth, "BLOCKS_PER_SM": blocks} | macros
    made = kernel(_HERE / "gate_up.cu", "gate_up", dependent=True, **constants)
    return made.bind(1, 32 * shape.spans, data_of(args), shared=shared), blocks


def _gate_up_few(shape: MoeShape, weights: tuple[PackedWeight, ...], args: tuple[Any, ...]) -> Bound:
    kinds = _kinds(weights)
    piece, others = _piece(kinds), shape.spans * (SPAN_BYTES + 1024)
    blocks, _ = _fitting(GATE_UP_FEW, list(kinds.values()), shape.spans * piece, others)
    constants = shape.constants() | kinds | {"BLOCKS_PER_SM": blocks}
    made = kernel(_HERE / "gate_up_small.cu", "gate_up_small", dependent=True, **constants)
    return made.bind((1, 1), 32 * shape.spans, data_of(args), shared=others + shape.spans * piece)


def _down(shape: MoeShape, args: tuple[Any, ...], *, few: bool) -> tuple[Bound, int]:
    kinds = [args[4].type, args[5].type]
    piece, token = span_bytes(kinds), shape.inner_spans * SPAN_BYTES
    warps, tokens = _WARPS, _PAIRS * (token + (0 if shape.inner_spans % 2 else 64))
    while warps > 1 and _STRIPES * warps * piece > _LARGE:
        warps //= 2
    blocks, depth = _fitting(DOWN, kinds, _STRIPES * warps * piece, tokens)
    constants = shape.constants() | {"DOWN": kinds[0], "SHARED_DOWN": kinds[1]}
    constants |= {"WARPS": warps, "WARP_STRIPES": _STRIPES, "STAGES": depth, "BLOCKS_PER_SM": blocks}
    made = kernel(_HERE / "down.cu", "down_small" if few else "down", dependent=True, **constants)
    if few:
        warps = shape.slots * min(shape.inner_spans, 32 // shape.slots)
        return made.bind(1, 32 * warps, data_of(args), shared=warps * (piece + SPAN_BYTES)), 1
    return made.bind(1, 32 * warps, data_of(args), shared=tokens + _STRIPES * warps * depth * piece), blocks


def _fitting(settings: DecodeTuning, kinds: list[str], stage: int, others: int) -> DecodeTuning:
    """Return settings that fit the registers and the shared memory of a multiprocessor."""
    blocks = 1 if any(kind in PLAIN for kind in kinds) else settings.blocks
    most = capabilities().processor_shared

    def room(blocks: int) -> int:
        return min(most // blocks - _RESERVED, capabilities().block_shared) - others - _RESERVED

    while blocks > 1 and (most // blocks - _RESERVED - others < min(2, settings.depth) * stage or room(blocks) < stage):
        blocks -= 1
    if room(blocks) < stage:
        raise KernelError(
            f"experts of {', '.join(kinds)} need {stage + others} bytes of shared memory, the device has {most}"
        )
    return DecodeTuning(blocks, min(settings.depth, room(blocks) // stage))
