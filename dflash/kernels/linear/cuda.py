"""The packed multiply on a GPU: shapes to grids and constants."""

from collections.abc import Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import cupy

from dflash.errors import KernelError
from dflash.kernels.formats.cuda import TILE_ROWS, Tiles, tile_bytes, tile_width
from dflash.kernels.jit import kernel

BUCKETS = 8, 16, 32, 64
"""Token counts that kernels are compiled for; a launch takes the next one."""
STORE, ADD, GATED = range(3)

_HERE = Path(__file__).parent
_GROUP = 8 * TILE_ROWS
_RING = {8: 40 * 1024, 16: 72 * 1024, 32: 96 * 1024, 64: 112 * 1024}
_WEIGHTS = 4
_TWO_TILES = 32
_WITH_MINIMA = "Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"


class Tokens:
    """Activations as the multiply reads them; several launches may share one.

    Parameters
    ----------
    x : float32 (T, K)
        Where the tokens will be; at most 64, C-contiguous.

    Raises
    ------
    KernelError
        If there are more than 64.
    """

    def __init__(self, x: Any) -> None:
        if x.ndim != 2 or x.dtype != cupy.float32 or not 0 < len(x) <= BUCKETS[-1]:
            raise KernelError(f"linear: x must be float32 (1 to {BUCKETS[-1]}, K), got {x.dtype} {x.shape}")
        self.x, self.shape = x, x.shape
        room = BUCKETS[-1] // 8 * -(-x.shape[1] // 256) * 4608
        self.lines, self.unit = cupy.zeros(room, cupy.uint8), cupy.zeros(BUCKETS[-1], cupy.float32)
        self._pack = kernel(_HERE / "tokens.cu", "tokens")

    def pack(self, n_tokens: int, stream: Any = None) -> None:
        """Convert the first `n_tokens` rows of `x`."""
        width = self.shape[1]
        self._pack(n_tokens, 256, (self.x, width, width, self.lines, self.unit), stream=stream)


class Workspace:
    """Partial sums, shared by all launches of a stream; it grows as launches are made."""

    def __init__(self) -> None:
        self.partial, self.arrived = cupy.zeros(1, cupy.float32), cupy.zeros(1, cupy.int32)

    def reserve(self, floats: int, counters: int) -> None:
        """Make room; launches captured in a graph before would keep the old room, so capture after."""
        if self.partial.size < floats:
            self.partial = cupy.zeros(floats, cupy.float32)
        if self.arrived.size < counters:
            self.arrived = cupy.zeros(counters, cupy.int32)


class _Decode:
    """Up to four weights of one type."""

    def __init__(self, tokens: Tokens, weights: Sequence[Tiles], outs: Sequence[Any], mode: int, space: Workspace) -> None:
        self.tokens, self.space, self.mode = tokens, space, mode
        self.weights, self.outs = weights, outs
        rows = [w.shape[0] for w in weights]
        self.tiles_of_row, kind = weights[0].tiles_of_row, weights[0].type
        groups = _groups(rows, _GROUP)
        self.slices = _slices(groups, self.tiles_of_row, gated=mode == GATED)
        self.grids = dict.fromkeys(BUCKETS, (groups, self.slices))
        few = _GROUP // self.slices
        self.grids[BUCKETS[0]] = (_groups(rows[:1], few // 2) if mode == GATED else _groups(rows, few), 1)
        self.described = [d for w, o in zip(weights, outs, strict=True) for d in _described(w, o)]
        self.described += [0, 0, 0, 0] * (_WEIGHTS - len(weights))
        self.stages = {n: _stages(kind, n) for n in BUCKETS}
        biggest = bucket(len(outs[0]))
        self.kernels = {
            n: kernel(
                _HERE / "decode.cu",
                "decode",
                QUANT=kind,
                TOKENS=n,
                TILES=tiles(n),
                STAGES=self.stages[n][0],
                MODE=mode,
                SLICES=self.slices if n == BUCKETS[0] else 0,
            )
            for n in BUCKETS
            if n <= biggest
        }
        if self.slices > 1 or mode == GATED:
            space.reserve(groups * self.slices * _GROUP * biggest, groups)

    def __call__(self, n_tokens: int, stream: Any) -> None:
        n = bucket(n_tokens)
        lines, unit, space = self.tokens.lines, self.tokens.unit, self.space
        self.kernels[n](
            grid=self.grids[n],
            block=256 // tiles(n),
            args=(lines, unit, space.partial, space.arrived, n_tokens, self.tiles_of_row, *self.described),
            shared=self.stages[n][1],
            stream=stream,
        )


class Launch:
    """A `linear` or `gated_linear` on fixed arrays, to be run for any number of tokens up to 64.

    Parameters
    ----------
    x : float32 (T, K), or Tokens
        The tokens; of a `Tokens`, which the caller packs, several launches may read.
    weights : sequence of Tiles (R, K)
        Of any native types; those of one type share a launch, four at most.
    outs : sequence of float32 (T, R)
        Where the products go; rows contiguous.
    add, gated : bool
        Add to `outs`; or ``out = silu(x @ gate.T) * (x @ up.T)`` of two weights of one type and shape, and one `out`.
    workspace : Workspace, optional
        Of the stream.

    Raises
    ------
    KernelError
        If a width or a number of rows does not fit; the message names the weight.

    Notes
    -----
    Activations are rounded to float16 (a token divided by a power of two, so none overflows), products are summed in
    float32: RMS error at most 5e-4 of the RMS of the output. The weights' values are exact but for BF16 below 2^-14 and
    F32, which are rounded to float16. A token has the same bits for any number of tokens; they depend on the rows of the
    launch, the type, K, and the device's number of processors.
    """

    def __init__(
        self,
        x: Any,
        weights: Sequence[Tiles],
        outs: Sequence[Any],
        *,
        add: bool = False,
        gated: bool = False,
        workspace: Workspace | None = None,
    ) -> None:
        self._packs = not isinstance(x, Tokens)
        self._tokens = Tokens(x) if self._packs else x
        if gated and (len({(w.type, w.shape) for w in weights}) != 1 or len(weights) != 2):
            raise KernelError(f"{weights[0].name}: gate and up must be of one type and shape")
        outs = (*outs, *outs) if gated else outs
        mode = GATED if gated else ADD if add else STORE
        for weight, out in zip(weights, outs, strict=True):
            _check(self._tokens.shape, weight, out)
        pairs = sorted(zip(weights, outs, strict=True), key=lambda pair: pair[0].type)
        space = workspace or Workspace()
        self._decodes = [
            _Decode(self._tokens, *zip(*same[i : i + _WEIGHTS], strict=True), mode, space)
            for same in (list(group) for _, group in groupby(pairs, key=lambda pair: pair[0].type))
            for i in range(0, len(same), _WEIGHTS)
        ]

    def __call__(self, n_tokens: int, stream: Any = None) -> None:
        """Run for the first `n_tokens` rows; allocates nothing and waits for nothing."""
        if self._packs:
            self._tokens.pack(n_tokens, stream)
        for decode in self._decodes:
            decode(n_tokens, stream)


def linear(x: Any, weights: Sequence[Tiles], outs: Sequence[Any], *, add: bool = False) -> None:
    """As `dflash.kernels.linear.linear`, once; `Launch` says the rest."""
    Launch(x, weights, outs, add=add)(len(x))


def gated_linear(x: Any, gate: Tiles, up: Tiles, out: Any) -> None:
    """As `dflash.kernels.linear.gated_linear`, once; `Launch` says the rest."""
    Launch(x, (gate, up), (out,), gated=True)(len(x))


def bucket(n_tokens: int) -> int:
    """The least of `BUCKETS` that holds `n_tokens`."""
    return next(n for n in BUCKETS if n >= n_tokens)


def tiles(n_tokens: int) -> int:
    """How many tiles of 16 rows a warp multiplies with each token it has read."""
    return 2 if n_tokens >= _TWO_TILES else 1


@cache
def _processors(device: int) -> int:
    return cupy.cuda.Device(device).attributes["MultiProcessorCount"]


@cache
def _largest_shared(device: int) -> int:
    return cupy.cuda.Device(device).attributes["MaxSharedMemoryPerBlockOptin"]


def _stages(kind: str, n: int) -> tuple[int, int]:
    """How many stages of tiles a block has in flight, and their bytes; beyond 8 tokens a stage holds tokens too."""
    lines = tile_width(kind) // 32 + (kind in _WITH_MINIMA)
    stage = 8 * tile_bytes(kind) + (n // 8 * lines * 512 if n > BUCKETS[0] else 0)
    stages = max(2, min(4, _RING[n] // stage))
    if stages * stage > _largest_shared(cupy.cuda.Device().id) - 1024:
        stages = 1
    return stages, stages * stage


def _groups(rows: Sequence[int], size: int) -> int:
    return sum(-(-n // size) for n in rows)


def _slices(groups: int, tiles_of_row: int, *, gated: bool) -> int:
    """Into how many parts K is cut, so that every processor has blocks to run; the same for any number of tokens."""
    processors = _processors(cupy.cuda.Device().id)
    most = 8 if groups <= processors // 2 and not gated else 4
    slices = 1
    while slices < most and slices * groups < 7 * processors and slices * 4 <= tiles_of_row:
        slices *= 2
    return slices


def _described(weight: Tiles, out: Any) -> tuple[int, int, int, int]:
    return weight.data.data.ptr, out.data.ptr, weight.shape[0], out.strides[0] // 4


def _check(tokens: tuple[int, int], weight: Tiles, out: Any) -> None:
    if weight.shape[1] != tokens[1]:
        raise KernelError(f"{weight.name}: rows of {weight.shape[1]} weights can't meet tokens of {tokens[1]}")
    shape = tokens[0], weight.shape[0]
    if out.dtype != cupy.float32 or out.shape != shape or out.strides[1] != 4:
        raise KernelError(f"{weight.name}: out must be float32 {shape} with contiguous rows, got {out.dtype} {out.shape}")
