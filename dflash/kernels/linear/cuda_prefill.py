"""The matrix multiply of a prefill: weights are unpacked to float16, some rows at a time, for the tensor cores."""

from collections.abc import Callable, Sequence
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np

from dflash.errors import KernelError
from dflash.kernels.arrays import GpuArray, Stream
from dflash.kernels.formats.cuda import TILE_ROWS, PackedWeight, tile_bytes, tile_width
from dflash.kernels.gpu.capabilities import capabilities
from dflash.kernels.gpu.driver import tensor_map
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.gpu.launch import Bound
from dflash.kernels.linear.cuda import ADD, GATED, STORE, check_projections

INNER_SCALE = 2.0**-6
"""Factor of a gated launch's results against overflow; the next projection undoes it (``scale=1 / INNER_SCALE``)."""

TYPICAL_ROWS = 2048
"""Number of tokens that the partition of weights larger than the scratch is optimised for."""
PACKED_ROWS = 896
"""Largest number of tokens for which Hopper multiplies packed tiles without unpacking them first, with the same bits.

A 27B reads prompts of 256 / 512 / 1,024 tokens at 7,200 / 8,450 / 8,830 tok/s with it on an H200, at 5,394 / 7,220 / 8,930
without.
"""
SCRATCH_BYTES = 1 << 28
"""Default size of the scratch."""

_HERE = Path(__file__).parent
_UNPACK = _HERE.parent / "formats" / "unpack.cu"
_PORTABLE_TILE, _STAGES = (128, 128), {32: 3, 64: 2}  # tile of prefill.cu; its stages by columns of a step
_HOPPER_TILE, _HOPPER_SHARED = (128, 256), 4 * (128 + 256) * 64 * 2 + 1024  # tile of prefill_hopper.cu; shared memory
_BOX = 128, 64  # rows and columns of its TMA copies
_PACKED_BOX, _PACKED_TOKENS, _STRIP = (64, 64), (64, 128, 192, 256), 128  # of prefill_packed.cu: TMA copies, tokens and rows
_TYPES, _CONSUMERS, _EXCHANGES, _MOST_SHARED = 3, 8, 32 * 132 * 4, 227 * 1024 - 256
_TILES_ON_THEIR_WAY = 48 << 10  # bytes of tiles that a block requests ahead
_UNPACKING = 380  # time of an item besides its multiplies, in tokens
_WARPS = 4  # tiles that a block of unpack.cu handles
_PLACED = 32  # multiple of unpacked rows at which a weight begins


class UnpackScratch:
    """Memory for unpacked weights, or for sums that blocks pass on, shared by all launches of a stream, and of no other.

    n_bytes: size; larger weights are processed in parts.
    empty: allocates it.
    """

    def __init__(self, n_bytes: int = SCRATCH_BYTES, empty: Callable[..., GpuArray] = cupy.empty) -> None:
        self.halves = empty(n_bytes // 2, dtype=cupy.float16)
        self._passed: tuple[GpuArray, GpuArray] | None = None

    def passed(self) -> tuple[GpuArray, GpuArray]:
        """Return memory for the sums that blocks of prefill_packed.cu pass on, and zeros that say whether they are there."""
        if self._passed is None:
            warps = capabilities().processors * _CONSUMERS
            n = warps * _PACKED_TOKENS[-1] // 8 * 128
            sums = self.halves[: 2 * n].view(np.float32) if 2 * n <= self.halves.size else cupy.empty(n, np.float32)
            self._passed = sums, cupy.zeros(warps, np.int32)
        return self._passed


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
    scratch: scratch of the stream.

    Weights are rounded to float16, products are summed in float32 along K: RMS error at most 5e-4 of the RMS of the output.
    A token has the same bits in every batch and at every place in it. Bits differ between Hopper, which has its own kernel,
    and other GPUs. Each call reads the packed weights, and writes and reads 2 bytes a weight. On Hopper, up to
    `PACKED_ROWS` tokens read only the packed weights.
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
        scratch: UnpackScratch,
    ) -> None:
        _check(x, weights, outs, gated)
        self._mode: dict[str, int] = {"MODE": GATED if gated else ADD if add else STORE} | ({"GELU": 1} if gelu else {})
        self._x, self._weights, self._outs, self._scale, self._scratch = x, weights, outs, scale, scratch
        self._hopper = capabilities().has_wgmma
        at_once = _rows_at_once(scratch, x.shape[1], self._hopper, weights[0].name)
        laid, total = _lay_out(weights, gated)
        self._steps = [self._piece(laid, start, min(total, start + at_once)) for start in range(0, total, at_once)]
        self._packed = self._from_tiles(weights) if self._hopper else []
        cupy.cuda.get_current_stream().synchronize()  # so that launches on any stream find the tables

    def __call__(self, n_rows: int, stream: Stream = None) -> None:
        """Run for the first `n_rows` rows; does not allocate or synchronise."""
        if not 0 < n_rows <= len(self._x):
            raise KernelError(f"prefill: rows must be 1 to {len(self._x)}, got {n_rows}")
        if self._packed and n_rows <= PACKED_ROWS:
            for packed in self._packed:
                packed(n_rows, stream)
            return
        for unpacks, multiply, tile in self._steps:
            for unpack in unpacks:
                unpack(stream)
            multiply(stream, grid=tile.grid(n_rows), n_rows=n_rows)

    def _piece(self, laid: list[_WeightRows], start: int, end: int) -> tuple[list[Bound], Bound, "_Tile"]:
        """Bind the unpacking and the multiply of unpacked rows `start` to `end`."""
        width = self._x.shape[1]
        halves = self._scratch.halves[: (end - start) * width].reshape(end - start, width)
        per = 2 if self._mode["MODE"] == GATED else 1
        unpacks, parts = list[Bound](), list[int]()
        for i, rows in enumerate(laid):
            low, high = max(0, start - rows.first) // per, min(rows.n, (end - rows.first) // per)
            if low >= high:
                continue
            first = max(0, rows.first - start)
            unpacks.append(_unpack(rows, low, high, halves[first:], leads=not unpacks))
            if rows.pair < 2:
                out = self._outs[i]
                parts += [first, high - low, out.data.ptr + low * out.itemsize, out.strides[0] // out.itemsize]
        table = cupy.asarray(np.array(parts, np.uint64))
        return (unpacks, *self._multiply(halves, table))

    def _multiply(self, halves: GpuArray, parts: Any) -> tuple[Bound, "_Tile"]:
        n, width = halves.shape
        numbers = (parts, parts.size // 4, 1, n, width, self._scale)
        if not self._hopper:
            step = _portable_step()
            launch = kernel(_HERE / "prefill.cu", "prefill", dependent=True, **self._mode, TILE_K=step)
            shared = _STAGES[step] * 2 * 128 * step * 2
            return launch.bind(1, 128, (self._x, halves, *numbers), shared), _Tile(*_PORTABLE_TILE, n, 0)
        launch = kernel(_HERE / "prefill_hopper.cu", "prefill_hopper", dependent=True, **self._mode)
        maps = tensor_map(self._x, _BOX), tensor_map(halves, _BOX)
        tile = _Tile(*_HOPPER_TILE, n, capabilities().processors)
        return launch.bind(1, 384, (*maps, *numbers), _HOPPER_SHARED), tile

    def _from_tiles(self, weights: Sequence[PackedWeight]) -> "list[_PackedLaunch]":
        """Return launches on packed tiles; none for a gated pair whose tiles differ in columns."""
        if self._mode["MODE"] == GATED:
            if len({tile_width(weight.type) for weight in weights}) > 1:
                return []
            return [_PackedLaunch(self._x, weights, self._outs, self._mode, self._scale, self._scratch)]
        types = list(dict.fromkeys(weight.type for weight in weights))
        made, pairs = list[_PackedLaunch](), list(zip(weights, self._outs, strict=True))
        for start in range(0, len(types), _TYPES):
            some = [(weight, out) for weight, out in pairs if weight.type in types[start : start + _TYPES]]
            of, outs = [weight for weight, _ in some], [out for _, out in some]
            made.append(_PackedLaunch(self._x, of, outs, self._mode, self._scale, self._scratch))
        return made


class _PackedLaunch:
    """A launch of prefill_packed.cu, compiled for several numbers of tokens of a block."""

    def __init__(
        self,
        x: GpuArray,
        weights: Sequence[PackedWeight],
        outs: Sequence[GpuArray],
        mode: dict[str, int],
        scale: float,
        memory: UnpackScratch,
    ) -> None:
        gated = mode["MODE"] == GATED
        types = tuple(dict.fromkeys(weight.type for weight in weights))
        table, strips = list[int](), 0
        pairs = list(zip(weights, outs, strict=False))  # a gated pair has one output
        for weight, out in sorted(pairs, key=lambda pair: types.index(pair[0].type)):
            table += [strips, weight.shape[0], weight.data.data.ptr, weights[-1].data.data.ptr]
            table += [out.data.ptr, out.strides[0] // out.itemsize, types.index(weight.type)]
            strips += -(-weight.shape[0] // (_STRIP // 2 if gated else _STRIP))
        table += [strips, *[0] * 6]
        self._strips, self._blocks = strips, capabilities().processors
        described = cupy.asarray(np.array(table, np.uint64))
        args = tensor_map(x, _PACKED_BOX), described, strips, 1, x.shape[1], scale, *memory.passed()
        self._bound = {n: _bind_packed(n, types, mode, args) for n in _PACKED_TOKENS}

    def __call__(self, n_rows: int, stream: Stream) -> None:
        """Run for the first `n_rows` rows, with as many tokens of a block as are fastest."""

        def cost(n: int) -> float:
            waves = max(1.0, self._strips * -(-n_rows // n) / self._blocks)
            return waves * (n + _UNPACKING)

        n = min(_PACKED_TOKENS, key=cost)
        self._bound[n](stream, grid=min(self._strips * -(-n_rows // n), self._blocks), n_rows=n_rows)


def _bind_packed(n: int, types: tuple[str, ...], mode: dict[str, int], args: tuple[Any, ...]) -> Bound:
    """Bind a launch with `n` tokens of a block."""
    of_stage, beside = 8 * max(tile_bytes(kind) for kind in types), 1024 + _EXCHANGES
    w_stages = max(2, min(8, -(-_TILES_ON_THEIR_WAY // of_stage)))
    x_stages = min(8, (_MOST_SHARED - beside - w_stages * of_stage) // (128 * n))
    stages = {"X_STAGES": x_stages, "W_STAGES": w_stages, "TOKENS": n, "QUANTS": ",".join(types)}
    launch = kernel(_HERE / "prefill_packed.cu", "prefill_packed", dependent=True, **stages, **mode)
    return launch.bind(1, 384, args, beside + w_stages * of_stage + x_stages * 128 * n)


class _Tile(NamedTuple):
    """Tile size in tokens and columns, the columns in all, and the number of blocks that run at once, or 0."""

    rows: int
    columns: int
    n_columns: int
    at_once: int

    def grid(self, n_rows: int) -> int:
        """Return the blocks: one for each tile, or, if tiles can be halved, at most as many as run at once."""
        tiles = -(-n_rows // self.rows) * -(-self.n_columns // self.columns)
        return min(2 * tiles, self.at_once) if self.at_once else tiles


def _portable_step() -> int:
    """Return the largest K step of a tile with which two blocks fit a multiprocessor."""
    return 64 if capabilities().processor_shared >= 132 * 1024 else 32


def _rows_at_once(scratch: UnpackScratch, width: int, hopper: bool, name: str) -> int:
    """Return the unpacked rows of a launch: as many as fit, rounded down to full waves of tiles on Hopper."""
    rows, columns = _HOPPER_TILE
    fit = scratch.halves.size // width // columns * columns
    if not fit:
        raise KernelError(f"{name}: the scratch holds less than {columns} rows of {width}")
    blocks = capabilities().processors
    full = columns * blocks // gcd(blocks, TYPICAL_ROWS // rows)
    return fit // full * full if hopper and fit >= full else fit


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


def _unpack(rows: _WeightRows, low: int, high: int, halves: GpuArray, *, leads: bool) -> Bound:
    """Bind the unpacking of rows `low` to `high` of a weight; `low` begins a tile, `leads` marks the first of several."""
    weight = rows.weight
    n = high - low
    strip = weight.tiles_of_row * tile_bytes(weight.type)
    launch = kernel(_UNPACK, "unpack", dependent=True, QUANT=weight.type, PART=rows.pair)
    grid = -(-weight.tiles_of_row // _WARPS), -(-n // TILE_ROWS)
    data = weight.data[low // TILE_ROWS * strip :]
    return launch.bind(grid, 32 * _WARPS, (data, halves, n, weight.shape[1], weight.tiles_of_row, leads))


def _check(x: GpuArray, weights: Sequence[PackedWeight], outs: Sequence[GpuArray], gated: bool) -> None:
    if x.ndim != 2 or x.dtype != cupy.float16 or not x.flags.c_contiguous or x.data.ptr % 16:
        raise KernelError(f"prefill: x must be contiguous float16 (T, K), got {x.dtype} {x.shape}")
    check_projections(x, weights, outs, gated=gated)
