"""The packed multiply of up to 64 tokens on a GPU: shapes to grids and constants."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import cupy

from dflash.errors import KernelError
from dflash.kernels.formats.cuda import TILE_ROWS, Tiles, tile_bytes, tile_width
from dflash.kernels.jit import kernel

BUCKETS = 1, 2, 4, 8, 16, 24, 32
"""Token counts that work is divided for; a launch takes the next one."""
MOST = 64
STORE, ADD, GATED = range(3)

_HERE = Path(__file__).parent
_WEIGHTS, _TYPES, _UNIT = 4, 3, 256
_UNITS_OF_SLICE, _MOST_STAGES, _ENOUGH_WARPS = 2, 4, 16
_WARPS = {8: (20,), 16: (20, 16, 12), 24: (16, 12, 8), 32: (12, 8)}
_WARPS_OF_SMALL = (8,)
_US_OF_TILE, _US_OF_PART, _BYTES_OF_US = 1.4 / 5120, 0.4, 60e3
_ROOMY = 200 << 10
_RESERVED = 3 << 10
_MINIMA = {"Q4_1": 8, "Q5_1": 8, "Q4_K": 8, "Q5_K": 8, "Q2_K": 16}


class Chip(NamedTuple):
    """What a GPU has.

    Parameters
    ----------
    processors : int
    shared : int
        Bytes of shared memory that a block may have.
    """

    processors: int
    shared: int

    @property
    def roomy(self) -> bool:
        """Whether a block holds many tokens and many tiles."""
        return self.shared > _ROOMY

    @property
    def most(self) -> int:
        """Tokens of the largest bucket; more take several launches."""
        return BUCKETS[-1] if self.roomy else 8


class Launch:
    """Products of tokens with weights that share them, for any number of tokens up to 64.

    Parameters
    ----------
    x : float16 (T, K)
        The tokens, C-contiguous; T is at most 64.
    weights : sequence of Tiles (R, K)
        Of any native types. Up to four, of three types, are one launch.
    outs : sequence of float32 (T, R)
        Where the products go; rows contiguous. Float16 if `gated`.
    add : bool
        Add to `outs`.
    gated : bool
        Two weights of one shape, gate and up, and one `out`: ``silu(x @ gate.T) * (x @ up.T) * INNER_SCALE``, at most 65504.
    scale : float
        Times every product.

    Raises
    ------
    KernelError
        If a width, a number of rows or a type of array does not fit; the message names the weight.

    Notes
    -----
    Products are summed in float32. The weights' values are exact but for BF16 below 2^-14 and F32, which are rounded to
    float16. A token has the same bits for any number of tokens and whichever weights share the launch.
    """

    def __init__(
        self,
        x: Any,
        weights: Sequence[Tiles],
        outs: Sequence[Any],
        *,
        add: bool = False,
        gated: bool = False,
        scale: float = 1.0,
    ) -> None:
        _check(x, weights, outs, gated=gated)
        most = _chip(cupy.cuda.Device().id).most
        self._pieces = []
        for start in range(0, len(x), most):
            of, some = slice(start, start + most), [out[start : start + most] for out in outs]
            if gated:
                decodes = [_Stream(x[of], [(weights[0], some[0]), (weights[1], some[0])], GATED, scale)]
            else:
                parts = _parts(list(zip(weights, some, strict=True)))
                decodes = [_Stream(x[of], part, ADD if add else STORE, scale) for part in parts]
            self._pieces.append((start, most, decodes))

    def __call__(self, n_tokens: int, stream: Any = None) -> None:
        """Run for the first `n_tokens` rows; allocates nothing and waits for nothing."""
        for start, most, decodes in self._pieces:
            if n_tokens > start:
                for decode in decodes:
                    decode(min(n_tokens - start, most), stream)


class _Stream:
    """Up to four weights of three types: one launch."""

    def __init__(self, x: Any, pairs: Sequence[tuple[Tiles, Any]], mode: int, scale: float) -> None:
        weights = [w for w, _ in pairs]
        types = tuple(sorted({w.type for w in weights}))
        described = [
            (w.data.data.ptr, out.data.ptr, w.shape[0], out.strides[0] // out.itemsize, types.index(w.type))
            for w, out in zip(weights, [out for _, out in pairs], strict=True)
        ]
        described += [(0, 0, 0, 0, 0)] * (_WEIGHTS - len(weights))
        sides = 2 if mode == GATED else 1
        tiles = tuple(-(-w.shape[0] // TILE_ROWS) for w in weights[: 1 if mode == GATED else None])
        self._kept, self._bound, self._args = pairs, {}, (x, scale, described)
        chip = _chip(cupy.cuda.Device().id)
        self._plans = {n: plan(n, x.shape[1], tiles, types, chip, sides=sides) for n in BUCKETS if n <= bucket(len(x))}
        self._kernels = {
            n: kernel(
                _HERE / "stream.cu",
                "stream",
                dependent=True,
                QUANTS=",".join(types),
                TOKENS=max(n, 8),
                MODE=mode,
                WARPS=one.warps,
            )
            for n, one in self._plans.items()
        }

    def __call__(self, n_tokens: int, stream: Any) -> None:
        n = bucket(n_tokens)
        if n not in self._bound:
            (x, scale, described), one = self._args, self._plans[n]
            numbers = one.slices, one.parts, one.across, one.chunk, one.stages, one.columns, one.items
            args = (x, len(x), x.shape[1], scale, *numbers, *(v for d in described for v in d))
            self._bound[n] = self._kernels[n].bind(one.blocks, 32 * one.warps, args, one.shared)
        self._bound[n](stream, n_tokens=n_tokens)


class Plan(NamedTuple):
    """How a launch divides its work; see ``stream.cu``."""

    warps: int
    slices: int
    parts: int
    across: int
    chunk: int
    stages: int
    columns: int
    items: int
    blocks: int
    shared: int


def slices_of(width: int) -> int:
    """Into how many slices a sum over `width` columns is cut; the same for every launch."""
    return -(-width // (_UNIT * _UNITS_OF_SLICE))


@cache
def plan(n: int, width: int, tiles: tuple[int, ...], types: tuple[str, ...], chip: Chip, *, sides: int) -> Plan:
    """Divide the work of a bucket of `n` tokens over `tiles` of 16 rows of each weight.

    Raises
    ------
    KernelError
        If the shared memory can't hold the tokens of a single slice.
    """
    slices, best = slices_of(width), (float("inf"), None)
    for warps in _WARPS[max(n, 8)] if chip.roomy else _WARPS_OF_SMALL:
        for parts in range(1, slices + 1):
            for across in range(sides, warps // -(-slices // parts) + 1, sides):
                one = _fit(n, width, tiles, types, chip, sides, (warps, parts, across))
                if one and one[0] < best[0]:
                    best = one
    if best[1] is None:
        raise KernelError(f"linear: {n} tokens of {width} do not fit the shared memory of {chip.shared} bytes")
    return best[1]


def _fit(
    n: int,
    width: int,
    tiles: Sequence[int],
    types: Sequence[str],
    chip: Chip,
    sides: int,
    shape: tuple[int, int, int],
) -> tuple[float, Plan] | None:
    """Microseconds that a plan of so many warps, parts and tiles across may take; None if there is no room."""
    warps, parts, across = shape
    units, slices, own, many = -(-width // _UNIT), slices_of(width), across // sides, max(n, 8)
    cuts = [units * (slices * p // parts) // slices for p in range(parts + 1)]
    columns = _UNIT * max(b - a for a, b in pairwise(cuts))
    items = sum(-(-t // own) for t in tiles)
    rounds = -(-items // chip.processors)
    tokens = n * (2 * columns + 64) + columns // _UNIT * _sum_bytes(types, many)
    fixed = (2 if parts > 1 else 1) * tokens + (2 if many == 8 else 1) * warps * many * 64
    kept = across * many * 64 if parts > 1 else 0
    stage = warps * max(-(-tile_bytes(t) // 128) * 128 for t in types)
    stages = min(_MOST_STAGES, (chip.shared - fixed - kept) // stage)
    if stages < (2 if chip.roomy else 1):
        return None
    chunk = min(rounds, (chip.shared - fixed - 2 * stage) // kept) if kept else rounds
    if chunk < 1:
        return None
    stages = min(stages, (chip.shared - fixed - chunk * kept) // stage)
    uses = -(-rounds // chunk)
    busy = max(1.0, _ENOUGH_WARPS / (across * -(-slices // parts)))
    cost = rounds * across * _US_OF_TILE * width * busy + uses * (parts * _US_OF_PART + n * width * 2 / _BYTES_OF_US)
    shared = fixed + stages * stage + chunk * kept
    return cost, Plan(warps, slices, parts, across, chunk, stages, columns, items, min(items, chip.processors), shared)


def _sum_bytes(types: Sequence[str], n: int) -> int:
    return sum(n * 4 * _MINIMA.get(t, 0) * (_UNIT // tile_width(t)) for t in types)


def linear(x: Any, weights: Sequence[Tiles], outs: Sequence[Any], *, add: bool = False) -> None:
    """As `dflash.kernels.linear.linear` with float16 `x`, once; `Launch` says the rest."""
    Launch(x, weights, outs, add=add)(len(x))


def bucket(n_tokens: int) -> int:
    """The least of `BUCKETS` that holds `n_tokens`."""
    return next(n for n in BUCKETS if n >= n_tokens)


def _parts(pairs: list[tuple[Tiles, Any]]) -> list[list[tuple[Tiles, Any]]]:
    """In order, as few parts as launches hold."""
    parts: list[list[tuple[Tiles, Any]]] = [[]]
    for pair in pairs:
        if len(parts[-1]) == _WEIGHTS or len({w.type for w, _ in (*parts[-1], pair)}) > _TYPES:
            parts.append([])
        parts[-1].append(pair)
    return parts


@cache
def _chip(device: int) -> Chip:
    about = cupy.cuda.Device(device).attributes
    return Chip(about["MultiProcessorCount"], about["MaxSharedMemoryPerBlockOptin"] - _RESERVED)


def _check(x: Any, weights: Sequence[Tiles], outs: Sequence[Any], *, gated: bool) -> None:
    name = weights[0].name
    if x.ndim != 2 or x.dtype != cupy.float16 or not 0 < len(x) <= MOST:
        raise KernelError(f"{name}: x must be float16 (1 to {MOST}, K), got {x.dtype} {x.shape}")
    if gated and (len(weights) != 2 or weights[0].shape != weights[1].shape):
        raise KernelError(f"{name}: gate and up must be two weights of one shape")
    kind = cupy.float16 if gated else cupy.float32
    for weight, out in zip(weights, (*outs, *outs) if gated else outs, strict=True):
        if weight.shape[1:] != x.shape[1:]:
            raise KernelError(f"{weight.name}: rows of {weight.shape[-1]} weights can't meet tokens of {x.shape[1]}")
        wanted = len(x), weight.shape[0]
        if out.dtype != kind or out.shape != wanted or out.strides[1] != out.itemsize:
            raise KernelError(
                f"{weight.name}: out must be {kind.__name__} {wanted} with contiguous rows, got {out.dtype} {out.shape}"
            )
