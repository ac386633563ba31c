"""The packed multiply of up to 128 tokens on Hopper, with one read of the weights and the bits of the other launches."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from dflash.kernels.arrays import GpuArray, Stream
from dflash.kernels.formats import FORMATS
from dflash.kernels.formats.cuda import TILE_ROWS, PackedWeight, tile_bytes, tile_width
from dflash.kernels.gpu.capabilities import capabilities
from dflash.kernels.gpu.jit import kernel

BUCKETS = 64, 96, 128
"""Token counts that the kernels are compiled for; a launch uses the smallest that holds its tokens."""

FROM = (32 << 20, 49), (0, 89)
FROM_WITH_PLAIN = (64 << 20, 49), (32 << 20, 65), (0, 97)
"""Least bytes of the weights of a launch, and the fewest tokens for which one read of these is then faster than several.

Measured for the matrices of a 27B on an H200, of Q4_K, Q6_K and Q8_0; `FROM_WITH_PLAIN` beside small unquantised ones.
"""

_HERE = Path(__file__).parent
_CONSUMERS, _CONSUMERS_GATED = {64: 12, 96: 8, 128: 8}, {64: 16, 96: 8, 128: 8}
"""Consumer warps of a block: as many as the registers of their sums allow, fewer where that was faster."""
_LARGE_TILE = 3 << 10  # bytes from which the rings of 16 warps leave no room for tokens
_PRODUCERS = 4  # warps of the warpgroup that copies tiles and tokens
_UNIT, _UNIT_STAGES, _TILE = 256, 4, 128  # columns of a unit of work; its stages; sums of a tile of 16 rows and eight tokens
_W_STAGES, _MOST_X_STAGES, _LEAST_X_STAGES, _X_STAGES_BESIDE_SUMS = 3, 16, 5, 6
_WEIGHTS, _TYPES, _NEVER = 4, 3, 1 << 30
_GATED = 2  # MODE of epilogue.cuh


class _Scratch:
    """Arrays that all launches on a device share, since they run one after another; their content lasts for one launch."""

    def __init__(self) -> None:
        self._arrays: dict[str, GpuArray] = {}

    def take(self, name: str, size: int, dtype: Any) -> GpuArray:
        """Return `size` zeros, or an array that an earlier launch has left as it was."""
        if name not in self._arrays or self._arrays[name].size < size:
            self._arrays[name] = cupy.zeros(size, dtype)
        return self._arrays[name]


@cache
def _scratch(device: int) -> _Scratch:
    return _Scratch()


class WideLaunch:
    """One launch for up to four weights of up to three types.

    All such launches on a device share scratch memory, so they must run on one stream.

    x: float16 (T, K); at most 128 tokens; K is a multiple of 256.
    pairs: weights and their outputs.
    mode: MODE of epilogue.cuh.
    norm: kind, gain, halves, squares and eps of the fused norm.
    slices: k slices of the multiply of fewer tokens.
    gates: float32 (T, R), optional
    """

    def __init__(
        self,
        x: GpuArray,
        pairs: Sequence[tuple[PackedWeight, GpuArray]],
        mode: int,
        scale: float,
        norm: Sequence[GpuArray],
        slices: int,
        *,
        gates: GpuArray = None,
    ) -> None:
        weights = [weight for weight, _ in pairs]
        self._types = tuple(sorted({weight.type for weight in weights}))
        self._x, self._pairs, self._mode, self._scale = x, pairs, mode, scale
        self._norm, self._slices, self._gates, self._kept = norm, slices, gates, list[Any]()
        sides = 2 if mode == _GATED else 1
        self._tiles = [-(-w.shape[0] // TILE_ROWS) for w in weights]
        tiles = self._tiles[:1] if mode == _GATED else self._tiles
        self._of_side, self._sides = tiles, sides
        self._units = x.shape[1] // _UNIT
        buckets = [n for n in BUCKETS if n < len(x)] + [bucket(len(x))]
        self._launches = {n: self._bind(n) for n in buckets}

    def __call__(self, n_tokens: int, stream: Stream, kept: int) -> None:
        """Run for the first `n_tokens` tokens; does not allocate or synchronise."""
        self._launches[bucket(n_tokens)](stream, n_tokens=n_tokens, kept=kept)

    def _bind(self, n: int) -> Any:
        memory, width = _scratch(cupy.cuda.Device().id), self._x.shape[1]
        kind, gain, halves, squares, eps = self._norm
        tokens = list[int]()
        layouts = _layouts(self._types)
        for i, layout in enumerate(layouts):
            n_bytes = n * (2 * _UNIT + 4 * FORMATS[self._types[layout]].minima)
            units = memory.take(f"tokens {layout}", self._units * n_bytes, np.uint8)
            self._kept.append(units)
            tokens += [units.data.ptr, n_bytes, int(i == layout)]
        tokens += [0, 0, 0] * (_TYPES - len(layouts))
        weights = [
            (w.data.data.ptr, out.data.ptr, w.shape[0], out.strides[0] // out.itemsize, self._types.index(w.type))
            for w, out in self._pairs
        ]
        weights += [(0, 0, 0, 0, 0)] * (_WEIGHTS - len(weights))
        constants = _stages(self._types, n, self._slices, gated=self._mode == _GATED)
        warps = constants["WARPS"]
        made = kernel(
            _HERE / "decode_wide.cu",
            "decode_wide",
            dependent=True,
            QUANTS=",".join(self._types),
            TOKENS=n,
            MODE=self._mode,
            NORM=kind,
            **constants,
        )
        blocks = capabilities().processors
        longest = max(np.diff([self._units * s // self._slices for s in range(self._slices + 1)]))
        partials = memory.take("partials", sum(self._tiles) * self._slices * n // 8 * _TILE, np.float32)
        counts = memory.take("counts", sum(self._tiles), np.int32)
        passed = memory.take("passed", blocks * warps * n // 8 * _TILE, np.float32)
        there = memory.take("there", blocks * warps, np.int32)
        factors, arranged = memory.take("factors", BUCKETS[-1], np.float32), memory.take("arranged", 2, np.int32)
        args = [self._x, n, width, self._scale, self._gates, gain, halves, squares, eps, factors, None]
        args += [number for one in weights for number in one]
        args += [*tokens, partials, counts, passed, there, arranged]
        groups = sum(-(-tiles // (warps // self._sides)) for tiles in self._of_side)
        grid = max(1, min(blocks, int(groups * self._units // longest)))
        return made.bind(grid, 32 * (warps + _PRODUCERS), args, constants["SMEM_BYTES"])


def least_tokens(weights: Sequence[PackedWeight]) -> int:
    """Return the fewest tokens for which one read of these weights is faster than several, on the current device.

    Part of a matrix, whose other rows another GPU has, is always read by launches of up to 32 tokens: not measured.
    """
    is_part = any(weight.whole_rows != weight.shape[0] for weight in weights)
    if is_part or not capabilities().has_wgmma or weights[0].shape[1] % _UNIT:
        return _NEVER
    n_bytes = sum(weight.data.nbytes for weight in weights)
    table = FROM if all(tile_width(weight.type) == _UNIT for weight in weights) else FROM_WITH_PLAIN
    return next(least for size, least in table if n_bytes >= size)


def bucket(n_tokens: int) -> int:
    """Return the smallest of `BUCKETS` that holds `n_tokens`."""
    return next(n for n in BUCKETS if n >= n_tokens)


def _layouts(types: Sequence[str]) -> list[int]:
    """Return for each type the index of the type whose arranged tokens it reads; types without minima share those of one."""
    formats = [FORMATS[t] for t in types]
    plain = [i for i, each in enumerate(formats) if each.run == 8]
    shared = next((i for i in plain if formats[i].minima), plain[0] if plain else 0)
    return [shared if each.run == 8 and not each.minima else i for i, each in enumerate(formats)]


def _consumers(types: Sequence[str], n: int, *, gated: bool) -> int:
    small = all(FORMATS[t].run == 8 for t in types) and max(map(tile_bytes, types)) <= _LARGE_TILE
    return (_CONSUMERS_GATED if gated and small else _CONSUMERS)[n]


def _stages(types: Sequence[str], n: int, slices: int, *, gated: bool) -> dict[str, int]:
    """Return the shape of a block, and the stages of `n` tokens and of weights that fit the shared memory.

    Gate and up of more than 64 tokens exchange their sums in shared memory if that leaves enough stages. Measured for 128
    tokens of a 27B on an H200; for 64 tokens the stages are worth more.
    """
    # the kernel has barriers and factors of its own, and for each slice two places in a list
    shared = (capabilities().block_shared - 1792 - 64 * slices) // 128 * 128
    warps = _consumers(types, n, gated=gated)
    weights, minima = warps * max(map(tile_bytes, types)), 4 * n * max(FORMATS[t].minima for t in types)
    sums = warps * n * 64 * max(1, slices - 1) if gated and n > 64 else 0

    def size(x: int) -> int:
        return 1024 + 128 * n * x + minima * -(-x // 4) + _W_STAGES * weights

    if size(_X_STAGES_BESIDE_SUMS) + sums > shared:
        sums = 0
    x = next(x for x in range(_MOST_X_STAGES, _LEAST_X_STAGES - 1, -1) if size(x) + sums <= shared)
    if x >= 2 * _UNIT_STAGES:
        x -= x % _UNIT_STAGES  # the stages of a unit are then side by side
    shape = {"WARPS": warps, "X_STAGES": x, "W_STAGES": _W_STAGES, "SMEM_BYTES": shared}
    return shape | {"SLICES": slices, "SUMS_IN_SMEM": int(sums > 0)}
