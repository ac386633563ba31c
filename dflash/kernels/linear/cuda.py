"""The packed multiply of up to 64 tokens on a GPU: shapes to grids and constants."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import cupy

from dflash.errors import KernelError
from dflash.kernels.formats.cuda import TILE_ROWS, Tiles
from dflash.kernels.jit import kernel
from dflash.kernels.linear.cuda_shape import Chip, shape

BUCKETS = 8, 16, 24, 32, 48, 64
"""Token counts past which a launch does more. Kernels are compiled for those up to `Chip.most`."""
MOST = BUCKETS[-1]
STORE, ADD, GATED, GATED_BY = range(4)

_HERE = Path(__file__).parent
_WEIGHTS, _TYPES = 4, 3
_HOPPER = 90


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
        pieces = -(-len(x) // _chip(cupy.cuda.Device().id).most)
        most = bucket(-(-len(x) // pieces))
        self._pieces = []
        for start in range(0, len(x), most):
            of, some = slice(start, start + most), [out[start : start + most] for out in outs]
            if gated:
                decodes = _gated(x[of], weights, some[0], scale)
            else:
                parts = _parts(list(zip(weights, some, strict=True)))
                decodes = [_Decode(x[of], part, ADD if add else STORE, scale) for part in parts]
            self._pieces.append((start, most, decodes))

    def __call__(self, n_tokens: int, stream: Any = None) -> None:
        """Run for the first `n_tokens` rows; allocates nothing and waits for nothing."""
        for start, most, decodes in self._pieces:
            if n_tokens > start:
                for decode in decodes:
                    decode(min(n_tokens - start, most), stream)


class _Decode:
    """Up to four weights of three types: one launch."""

    def __init__(self, x: Any, pairs: Sequence[tuple[Tiles, Any]], mode: int, scale: float, gates: Any = None) -> None:
        weights = [w for w, _ in pairs]
        types = tuple(sorted({w.type for w in weights}))
        self._tiles = [-(-w.shape[0] // TILE_ROWS) for w in (weights[:1] if mode == GATED else weights)]
        described = [
            (w.data.data.ptr, out.data.ptr, w.shape[0], out.strides[0] // out.itemsize, types.index(w.type))
            for w, out in pairs
        ]
        described += [(0, 0, 0, 0, 0)] * (_WEIGHTS - len(weights))
        self._args = (x, gates, len(x), x.shape[1], scale, *(n for one in described for n in one))
        self._mode, self._kept = mode, pairs
        chip, size = _chip(cupy.cuda.Device().id), (sum(self._tiles), x.shape[1])
        self._shapes = {n: shape(n, *size, types, chip, gated=mode == GATED) for n in BUCKETS if n <= bucket(len(x))}
        self._kernels = {n: _kernel(types, n, mode, constants) for n, constants in self._shapes.items()}
        self._bound: dict[int, Any] = {}

    def __call__(self, n_tokens: int, stream: Any) -> None:
        n = bucket(n_tokens)
        if n not in self._bound:
            one = self._shapes[n]
            of_block = one["MT"] * one["UNITS"] // (2 if self._mode == GATED else 1)
            self._bound[n] = self._kernels[n].bind(
                sum(-(-tiles // of_block) for tiles in self._tiles) * one["CLUSTER"],
                32 * one["KS"] * (one["UNITS"] + 1),
                self._args,
                one["SHARED"],
            )
        self._bound[n](stream, n_tokens=n_tokens)


def _gated(x: Any, weights: Sequence[Tiles], out: Any, scale: float) -> list[_Decode]:
    """Gate and up; of two types, one after the other."""
    gate, up = weights
    if gate.type == up.type:
        return [_Decode(x, [(gate, out), (up, out)], GATED, scale)]
    gates = cupy.empty((len(x), gate.shape[0]), cupy.float32)
    return [_Decode(x, [(gate, gates)], STORE, scale), _Decode(x, [(up, out)], GATED_BY, scale, gates)]


def _kernel(types: tuple[str, ...], n: int, mode: int, constants: dict[str, int]) -> Any:
    return kernel(_HERE / "decode.cu", "decode", dependent=True, QUANTS=",".join(types), TOKENS=n, MODE=mode, **constants)


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
    it = cupy.cuda.Device(device)
    about = it.attributes
    room = about["MaxSharedMemoryPerBlockOptin"] // 1024
    return Chip(about["MultiProcessorCount"], room, int(it.compute_capability) >= _HOPPER)


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
