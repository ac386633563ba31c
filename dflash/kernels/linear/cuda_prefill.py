"""The matrix multiply of a prefill: weights are unpacked to float16, some rows at a time, for the tensor cores."""

from collections.abc import Callable, Sequence
from math import frexp, gcd
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np

from dflash.errors import KernelError
from dflash.kernels.arrays import GpuArray, Stream
from dflash.kernels.formats import FORMATS
from dflash.kernels.formats.cuda import TILE_ROWS, PackedWeight, tile_bytes
from dflash.kernels.gpu.capabilities import capabilities
from dflash.kernels.gpu.driver import tensor_map
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.gpu.launch import Bound
from dflash.kernels.linear.cuda import ADD, GATED, STORE, check_projections

INNER_SCALE = 2.0**-6
"""Factor of a gated launch's results against overflow; the next projection undoes it (``scale=1 / INNER_SCALE``)."""

TYPICAL_ROWS = 2048
"""Number of tokens that the partition of weights larger than the scratch is optimised for."""
SCRATCH_BYTES = 1 << 28
"""Default size of the scratch."""

_HERE = Path(__file__).parent
_UNPACK = _HERE.parent / "formats" / "unpack.cu"
_TILE_M, _PORTABLE_N, _STAGES = 128, 128, {32: 3, 64: 2}  # tile of prefill.cu; its stages by columns of a step
_HOPPER_N = (256, 192, 160, 96), (192,)  # TILE_N of prefill_hopper.cu, of float16 and of int8
_BESIDE = 128  # time of a tile besides its products, in rows of W
_LINE, _BLOCK = 128, 256  # bytes of a row in a stage; columns of a token that have a scale as int8
_MOST_SHARED = 225 * 1024  # bytes of the stages of prefill_hopper.cu
_WARPS = 4  # tiles that a block of unpack.cu handles
_PLACED = 32  # multiple of unpacked rows at which a weight begins
_HALVES, _INT8, _MAXIMA = range(3)  # what unpack.cu writes
_MOST_PARTS = 32  # MAX_PARTS of prefill_hopper.cu


class UnpackScratch:
    """Memory for unpacked weights, shared by all launches of a stream, and of no other.

    n_bytes: size; larger weights are processed in parts.
    empty: allocates it.
    kept: bytes of further memory for weights that stay unpacked.
    """

    def __init__(self, n_bytes: int = SCRATCH_BYTES, empty: Callable[..., GpuArray] = cupy.empty, *, kept: int = 0) -> None:
        self.halves = empty(n_bytes // 2, dtype=cupy.float16)
        self._left = kept

    def keep(self, n_bytes: int) -> GpuArray:
        """Return memory, int8 (n_bytes,), that no other launch uses; None if less is left."""
        if n_bytes > self._left:
            return None
        self._left -= n_bytes
        return cupy.empty(n_bytes, np.int8)


def quantized_bytes(n_rows: int, width: int) -> int:
    """Return the bytes of scratch that `n_rows` tokens of `width` values take as int8, with their scales."""
    rows, blocks = -(-n_rows // _TILE_M) * _TILE_M, -(-width // _BLOCK)
    return (n_rows * _BLOCK + 4 * rows) * blocks


class _WeightRows(NamedTuple):
    """The rows of a weight, their first unpacked row, and the weight's place in a gated pair: 1, 2, or 0 for none."""

    weight: PackedWeight
    n: int
    first: int
    pair: int


class PrefillLinear:
    """A `linear` or `gated_linear` on fixed arrays for any number of tokens, optimised for hundreds or more.

    x: float16 (T, K); activations of the tokens; C-contiguous.
    weights: weights of any types; with `gated` the gate and the up projection.
    outs: sequence of float32 (T, R); receive the products; rows contiguous. With `gated` one float16 array.
    add: compute ``out += scale * (x @ W.T)`` instead of ``out = scale * (x @ W.T)``.
    gated: compute ``out = silu(x @ gate.T) * (x @ up.T) * INNER_SCALE``, clamped to 65504.
    gelu: with `gated`, GELU in its tanh form in place of SiLU.
    int8: round tokens and quantised weights to int8 (Hopper only); weights of floats are multiplied as without it.
    scratch: scratch of the stream; with `int8` it holds `quantized_bytes` more.

    Weights are rounded to float16, products are summed in float32 along K: RMS error at most 5e-4 of the RMS of the output.
    A token has the same bits in every batch and at every place in it. Bits differ between Hopper, which has its own kernel,
    and other GPUs. Weights for which `scratch` has memory of their own are unpacked by the first call; later calls read 2
    bytes a weight. For others each call reads the packed weights, and writes and reads 2 bytes a weight.

    With `int8`, tokens and rows of weights are rotated by Hadamard matrices, which changes no product but makes large values
    small. Then each 256 values of a token and each row of a weight have a scale, a 127th of their largest value. Products of
    256 columns are summed exactly, and these sums in float32. Weights must be below 1,000: sums of 64 are float16. A weight
    takes 1 byte.
    """

    def __init__(
        self,
        x: GpuArray,
        weights: Sequence[PackedWeight],
        outs: Sequence[GpuArray],
        *,
        add: bool = False,
        gated: bool = False,
        gelu: bool = False,
        scale: float = 1.0,
        int8: bool = False,
        scratch: UnpackScratch,
    ) -> None:
        _check(x, weights, outs, gated)
        self._mode: dict[str, int] = {"MODE": GATED if gated else ADD if add else STORE} | ({"GELU": 1} if gelu else {})
        self._x, self._scale, self._scratch = x, scale, scratch
        self._hopper = capabilities().has_wgmma
        if int8 and not self._hopper:
            raise KernelError("prefill: int8 needs a Hopper GPU")
        if add and frexp(scale)[0] != 0.5:
            raise KernelError(f"prefill: scale of an addition is {scale}, must be a power of two")
        rounded = [int8 and FORMATS[weight.type].block.elements > 1 for weight in weights]
        if gated:
            rounded = [all(rounded)] * 2
        self._once = list[Bound]()
        self._pieces = list[_Piece]()
        for as_int8 in dict.fromkeys(rounded):
            some = [weight for weight, is_int8 in zip(weights, rounded, strict=True) if is_int8 == as_int8]
            to = outs if gated else [out for out, is_int8 in zip(outs, rounded, strict=True) if is_int8 == as_int8]
            self._add(some, to, int8=as_int8)
        cupy.cuda.get_current_stream().synchronize()  # so that launches on any stream find the tables

    def __call__(self, n_rows: int, stream: Stream = None) -> None:
        """Run for the first `n_rows` rows; does not allocate or synchronise."""
        if not 0 < n_rows <= len(self._x):
            raise KernelError(f"prefill: rows must be 1 to {len(self._x)}, got {n_rows}")
        for once in self._once:  # by the first call, when the weights are there
            once(stream)
        self._once.clear()
        for piece in self._pieces:
            piece(n_rows, stream)

    def _add(self, weights: Sequence[PackedWeight], outs: Sequence[GpuArray], *, int8: bool) -> None:
        """Add the launches for some of the weights."""
        width, gated, name = self._x.shape[1], self._mode["MODE"] == GATED, weights[0].name
        width = -(-width // _BLOCK) * _BLOCK if int8 else width
        memory = self._scratch.halves.view(np.int8)
        tokens = _Tokens(self._x, memory) if int8 else None
        element = 1 if int8 else 2
        laid, total = _lay_out(weights, gated)
        kept = self._scratch.keep(total * width * element)
        if kept is None:
            room = (memory.size - (tokens.n_bytes if tokens else 0)) // element
            at_once = _rows_at_once(room, width, _HOPPER_N[int8][0] if self._hopper else None, name)
        else:
            memory, at_once = kept, total
        units = cupy.zeros((2, total + _HOPPER_N[1][0]), np.float32) if int8 else None  # whole tiles are read
        for start in range(0, total, at_once):
            end = min(total, start + at_once)
            unpacked = memory[: (end - start) * width * element].view(np.int8 if int8 else np.float16)
            unpacked = unpacked.reshape(end - start, width)
            self._pieces.append(self._piece(laid, outs, start, unpacked, tokens, units, is_kept=kept is not None))

    def _piece(
        self,
        laid: list[_WeightRows],
        outs: Sequence[GpuArray],
        start: int,
        unpacked: GpuArray,
        tokens: "_Tokens | None",
        units: GpuArray,
        *,
        is_kept: bool,
    ) -> "_Piece":
        """Bind the unpacking and the multiply of unpacked rows from `start` on; `units` of int8 rows, and their maxima."""
        end, per = start + len(unpacked), 2 if self._mode["MODE"] == GATED else 1
        int8 = tokens is not None
        written = _INT8 if int8 else _HALVES
        unpacks, parts = list[Bound](), list[int]()
        for i, rows in enumerate(laid):
            low, high = max(0, start - rows.first) // per, min(rows.n, (end - rows.first) // per)
            if low >= high:
                continue
            first = max(0, rows.first - start)
            of_rows = tuple(each[start + first :] for each in units) if int8 else (None, None)
            unpacks.append(_unpack(rows, low, high, unpacked[first:], of_rows, written, leads=not unpacks))
            if int8:
                self._once.append(_unpack(rows, low, high, unpacked[first:], of_rows, _MAXIMA, leads=False))
            if rows.pair < 2:
                out = outs[i]
                parts += [first, high - low, out.data.ptr + low * out.itemsize, out.strides[0] // out.itemsize]
        if is_kept:
            self._once += unpacks
        table = cupy.asarray(np.array(parts, np.uint64))
        quantize = None if tokens is None or start else tokens.quantize
        multiplies = self._multiplies(unpacked, table, tokens, units[0, start:] if int8 else None)
        return _Piece(quantize, () if is_kept else unpacks, multiplies)

    def _multiplies(
        self, unpacked: GpuArray, parts: Any, tokens: "_Tokens | None", units: GpuArray
    ) -> "dict[_Tiles, Bound]":
        """Bind the multiply for tiles of several widths."""
        n, width = unpacked.shape
        numbers = (parts, parts.size // 4, 1, n, width, self._scale)
        if not self._hopper:
            step = _portable_step()
            launch = kernel(_HERE / "prefill.cu", "prefill", dependent=True, **self._mode, TILE_K=step)
            shared = _STAGES[step] * 2 * 128 * step * 2
            return {_Tiles(_PORTABLE_N, n, 0): launch.bind(1, 128, (self._x, unpacked, *numbers), shared)}
        int8, found = tokens is not None, dict["_Tiles", Bound]()
        constants = self._mode | ({"INT8": 1} if int8 else {})
        line = _LINE // unpacked.itemsize
        of_tokens = tensor_map(tokens.values if tokens else self._x, (_TILE_M, line))
        scales = (tokens.scales, tokens.scales.shape[1], units) if tokens else (None, 0, None)
        for columns in _HOPPER_N[int8]:
            stages = min(8, _MOST_SHARED // ((_TILE_M + columns) * _LINE))
            sizes = {"TILE_N": columns, "STAGES": stages}
            launch = kernel(_HERE / "prefill_hopper.cu", "prefill_hopper", dependent=True, **constants, **sizes)
            args = of_tokens, tensor_map(unpacked, (columns // 2, line)), *scales, *numbers
            tiles = _Tiles(columns, n, capabilities().processors)
            found[tiles] = launch.bind(1, 384, args, stages * (_TILE_M + columns) * _LINE + 1024)
        return found


class _Tokens:
    """Tokens as int8 at the end of a scratch.

    values: int8 (T, K).
    scales: float32 (blocks of 256 columns, T rounded up to whole tiles).
    """

    def __init__(self, x: GpuArray, memory: GpuArray) -> None:
        self._launch = kernel(_HERE / "quantize_tokens.cu", "quantize_tokens", dependent=True)
        n, width = x.shape
        self.n_bytes = quantized_bytes(n, width)
        if self.n_bytes >= memory.size:
            raise KernelError(f"prefill: the scratch does not hold {n} tokens of {width} as int8")
        own = memory[(memory.size - self.n_bytes) // 256 * 256 :]
        blocks = -(-width // _BLOCK)
        self.values = own[: n * _BLOCK * blocks].reshape(n, -1)
        self.scales = own[self.values.size : self.n_bytes].view(np.float32).reshape(blocks, -1)
        self._bound = self._launch.bind(1, 128, (x, self.values.view(np.uint8), self.scales, self.scales.shape[1], width))

    def quantize(self, n_rows: int, stream: Stream) -> None:
        """Round the first `n_rows` rows."""
        self._bound(stream, grid=n_rows)


class _Piece(NamedTuple):
    """Launches for some rows of the weights: of the tokens, if they are to be rounded; of the unpacking; of the multiply."""

    quantize: Callable[[int, Stream], None] | None
    unpacks: Sequence[Bound]
    multiplies: "dict[_Tiles, Bound]"

    def __call__(self, n_rows: int, stream: Stream) -> None:
        """Run for the first `n_rows` rows."""
        if self.quantize:
            self.quantize(n_rows, stream)
        for unpack in self.unpacks:
            unpack(stream)
        tiles = min(self.multiplies, key=lambda each: each.cost(n_rows))
        self.multiplies[tiles](stream, grid=tiles.grid(n_rows), n_rows=n_rows)


class _Tiles(NamedTuple):
    """Columns of a tile, which has 128 tokens, columns in all, and the number of blocks that run at once, or 0."""

    columns: int
    n_columns: int
    at_once: int

    def grid(self, n_rows: int) -> int:
        """Return the blocks: one for each tile, or, if tiles can be halved, at most as many as run at once."""
        tiles = self._count(n_rows)
        return min((1 + self._halves) * tiles, self.at_once) if self.at_once else tiles

    def cost(self, n_rows: int) -> int:
        """Return the time of a launch, in rows of W that a block multiplies."""
        if not self.at_once:
            return 0
        waves, left = divmod(self._count(n_rows), self.at_once)
        last = self.columns // 2 if self._halves and 2 * left <= self.at_once else self.columns
        return waves * (self.columns + _BESIDE) + (last + _BESIDE if left else 0)

    @property
    def _halves(self) -> bool:
        return self.columns % 64 == 0

    def _count(self, n_rows: int) -> int:
        return -(-n_rows // _TILE_M) * -(-self.n_columns // self.columns)


def _portable_step() -> int:
    """Return the largest K step of a tile with which two blocks fit a multiprocessor."""
    return 64 if capabilities().processor_shared >= 132 * 1024 else 32


def _rows_at_once(room: int, width: int, columns: int | None, name: str) -> int:
    """Return the unpacked rows of a launch: as many as fit, rounded down to full waves of tiles on Hopper."""
    step = columns or _HOPPER_N[0][0]
    fit = room // width // step * step
    if not fit:
        raise KernelError(f"{name}: the scratch holds less than {step} rows of {width}")
    blocks = capabilities().processors
    full = step * blocks // gcd(blocks, TYPICAL_ROWS // _TILE_M)
    return fit // full * full if columns and fit >= full else fit


def _lay_out(weights: Sequence[PackedWeight], gated: bool) -> tuple[list[_WeightRows], int]:
    """Return the layout of the unpacked rows of all weights, and their total."""
    if gated:
        n = weights[0].shape[0]
        return [_WeightRows(w, n, 0, pair) for pair, w in enumerate(weights, 1)], -(-n // TILE_ROWS) * 2 * TILE_ROWS
    laid, first = [], 0
    for weight in weights:
        laid.append(_WeightRows(weight, weight.shape[0], first, 0))
        first += -(-weight.shape[0] // _PLACED) * _PLACED
    return laid, first


def _unpack(
    rows: _WeightRows, low: int, high: int, unpacked: GpuArray, units: tuple[GpuArray, ...], written: int, *, leads: bool
) -> Bound:
    """Bind the unpacking of rows `low` to `high` of a weight; `low` begins a tile, `leads` marks the first of several.

    units: units of int8 rows, and their largest values.
    """
    weight = rows.weight
    n = high - low
    strip = weight.tiles_of_row * tile_bytes(weight.type)
    launch = kernel(_UNPACK, "unpack", dependent=True, QUANT=weight.type, PART=rows.pair, AS=written)
    grid = -(-weight.tiles_of_row // _WARPS), -(-n // TILE_ROWS)
    data, out = weight.data[low // TILE_ROWS * strip :], unpacked.view(np.uint8)
    return launch.bind(grid, 32 * _WARPS, (data, out, *units, n, unpacked.shape[1], weight.tiles_of_row, leads))


def _check(x: GpuArray, weights: Sequence[PackedWeight], outs: Sequence[GpuArray], gated: bool) -> None:
    if x.ndim != 2 or x.dtype != cupy.float16 or not x.flags.c_contiguous or x.data.ptr % 16:
        raise KernelError(f"prefill: x must be contiguous float16 (T, K), got {x.dtype} {x.shape}")
    if len(weights) > _MOST_PARTS:
        raise KernelError(f"prefill: at most {_MOST_PARTS} weights in a launch, got {len(weights)}")
    check_projections(x, weights, outs, gated=gated)
