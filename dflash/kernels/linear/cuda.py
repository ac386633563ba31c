"""The packed multiply of up to 512 tokens on a GPU: grids and constants from shapes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cupy

from dflash.errors import KernelError
from dflash.kernels.arrays import GpuArray, Stream
from dflash.kernels.exchange.signals import SIGNALS, PeerLink
from dflash.kernels.formats.cuda import TILE_ROWS, PackedWeight
from dflash.kernels.gpu.capabilities import capabilities
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.linear.tile_config import Chip, most_tokens, one_token, shape, slices_of
from dflash.kernels.linear.wide import cuda as wide_cuda
from dflash.kernels.norm.split import SplitNorm

BUCKETS = 8, 16, 24, 32, 48, 64
"""Token counts that kernels are compiled for, up to `most_tokens`; a launch uses the next larger one."""
MOST = 512
WIDE = wide_cuda.BUCKETS[-1]
STORE, ADD, GATED, GATED_BY = range(4)
"""Epilogues, MODE of decode.cu."""

NO_NORM, INPUT_NORM, OUTPUT_NORM = range(3)
"""NORM of decode.cu: no norm, an input norm, an output norm."""

_HERE = Path(__file__).parent
_WEIGHTS, _TYPES = 4, 3  # largest number of weights of a launch, and of their types
_CARVEOUT_TOKENS = 8
"""Largest bucket that prefers the largest carve-out: a step of one row of a model of 135M parameters takes 399 µs in place
of 435 with it, on an H200. Steps of 16 rows were up to 2 % faster there, but 1.5 % slower on a 0.8B."""


class DecodeLinear:
    """Products of the same tokens with several weights, for up to 512 tokens.

    x: float16 (T, K); activations of the tokens, C-contiguous; T is at most 512.
    weights: weights of any native types. Up to four weights of up to three types share a launch.
    outs: sequence of float32 (T, R); receive the products; rows contiguous. Float16 if `gated`.
    add: add to `outs`.
    gated: take two weights of one shape, gate and up, and one output: ``silu(x @ gate.T) * (x @ up.T) * INNER_SCALE``,
        clamped to 65504.
    gelu: with `gated`, GELU in its tanh form in place of SiLU.
    scale: factor of every product.
    input_norm: norm that made `x`: `x` is its `half`, and products are scaled by the inverse RMS.
    output_norm: norm that reads the sums next; requires `add` and one weight. Its `half` and `squares` are written.
    link: link to the other GPUs of a tensor split: what the launch waits for, and where halves or gated results go.
    published: the launch before this one publishes `x` and the squares of `input_norm` if there is one token
        (``early_read.cuh``).

    Products are summed in float32. Weights are exact, except for F32 and for BF16 below 2^-14, which are rounded to
    float16. A token has the same bits for any number of tokens, whichever weights share the launch.
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
        input_norm: SplitNorm | None = None,
        output_norm: SplitNorm | None = None,
        link: PeerLink | None = None,
        published: bool = False,
    ) -> None:
        if x.ndim != 2 or x.dtype != cupy.float16 or not 0 < len(x) <= MOST:
            raise KernelError(f"{weights[0].name}: x must be float16 (1 to {MOST}, K), got {x.dtype} {x.shape}")
        check_projections(x, weights, outs, gated=gated)
        if output_norm is not None and (not add or len(weights) > 1 or output_norm.half.shape[1:] != outs[0].shape[1:]):
            raise KernelError(f"{weights[0].name}: an output norm needs add=True and one weight of its width")
        self._least = wide_cuda.least_tokens(weights) if link is None else MOST + 1
        most = _most(weights, gated=gated)
        if len(x) < self._least:
            most = bucket(-(-len(x) // -(-len(x) // most)))
        self._pieces, self._sends, self._strides = [], link is not None and link.sends, outs[0].strides
        self._wide = list[tuple[int, list[wide_cuda.WideLaunch]]]()
        for start in range(0, len(x) - self._least + 1, WIDE):
            of, some = slice(start, start + WIDE), [out[start : start + WIDE] for out in outs]
            self._wide.append((start, _wide(x[of], weights, some, add, gated, scale, _Norm.of(input_norm, output_norm, of))))
        for start in range(0, len(x), most):
            of, some = slice(start, start + most), [out[start : start + most] for out in outs]
            norm = _Norm.of(input_norm, output_norm, of)
            peers = None if link is None else _Peers(link.table(start), link.macros)
            if gated:
                decodes = _gated(x[of], weights, some[0], scale, norm, peers, gelu=gelu)
            else:
                parts = _parts(list(zip(weights, some, strict=True)))
                mode, polled = ADD if add else STORE, published and start == 0 and len(parts) == 1
                decodes = [_Launch(x[of], part, mode, scale, norm, peers=peers, polled=polled) for part in parts]
            self._pieces.append((start, most, decodes))

    def __call__(self, n_tokens: int, stream: Stream = None, *, kept: GpuArray = None) -> None:
        """Run for the first `n_tokens` rows; does not allocate or synchronise.

        With `add` and one output, a copy of the sums (a captured hidden state) can be written to `kept`, float32 (T, R). Its
        rows are as far apart as those of the output.
        """
        if kept is not None and kept.strides != self._strides:
            raise KernelError(f"kept: strides must be those of the output, {self._strides}, got {kept.strides}")
        signals, done = SIGNALS // sum(n_tokens > start for start, *_ in self._pieces) if self._sends else 0, 0
        for start, wides in self._wide:
            if n_tokens - start >= self._least:
                to, done = 0 if kept is None else kept[start:].data.ptr, start + WIDE
                for wide in wides:
                    wide(min(n_tokens - start, WIDE), stream, to)
        for start, most, decodes in self._pieces:
            if n_tokens > start >= done:
                to = 0 if kept is None else kept[start:].data.ptr
                for decode in decodes:
                    decode(min(n_tokens - start, most), stream, to, signals if decode is decodes[-1] else 0)


class _Norm(NamedTuple):
    """Arguments of a launch for its fused norm: kind, gain, halves, squares, eps."""

    kind: int = NO_NORM
    gain: GpuArray = None
    halves: GpuArray = None
    squares: GpuArray = None
    eps: float = 0.0

    @classmethod
    def of(cls, input_norm: SplitNorm | None, output_norm: SplitNorm | None, rows: slice) -> "_Norm":
        if input_norm is not None:
            return cls(INPUT_NORM, None, None, input_norm.squares[rows], input_norm.eps)
        if output_norm is not None:
            return cls(OUTPUT_NORM, output_norm.weight, output_norm.half[rows], output_norm.squares[rows], output_norm.eps)
        return cls()


class _Launch:
    """One launch for up to four weights of up to three types."""

    def __init__(
        self,
        x: GpuArray,
        pairs: Sequence[tuple[PackedWeight, GpuArray]],
        mode: int,
        scale: float,
        norm: _Norm,
        *,
        gates: GpuArray = None,
        peers: "_Peers | None" = None,
        polled: bool = False,
        gelu: bool = False,
    ) -> None:
        weights = [w for w, _ in pairs]
        types = tuple(sorted({w.type for w in weights}))
        self._tiles = [-(-w.shape[0] // TILE_ROWS) for w in (weights[:1] if mode == GATED else weights)]
        described = [
            (w.data.data.ptr, out.data.ptr, w.shape[0], out.strides[0] // out.itemsize, types.index(w.type))
            for w, out in pairs
        ]
        described += [(0, 0, 0, 0, 0)] * (_WEIGHTS - len(weights))
        self._mode, self._kept = mode, pairs
        self._args = (x, len(x), x.shape[1], scale, gates, *norm[1:]), [n for one in described for n in one]
        size = _size(weights, gated=mode == GATED)
        self._shapes = {n: shape(n, **size) for n in BUCKETS if n <= bucket(len(x))}
        alone = one_token(**size)
        if polled or alone:  # a launch of one token has code of its own
            self._shapes[1] = self._shapes[BUCKETS[0]] | alone
        linked = ({} if peers is None else peers.macros) | ({"GELU": 1} if gelu else {})
        self._kernels = {
            n: _kernel(types, bucket(n), mode, norm.kind, one | linked | {"POLLED": int(polled and n == 1)})
            for n, one in self._shapes.items()
        }
        self._peers = None if peers is None else peers.table
        self._bound: dict[int, Any] = {}

    def __call__(self, n_tokens: int, stream: Stream, kept: int, signals: int) -> None:
        n = 1 if n_tokens == 1 and 1 in self._shapes else bucket(n_tokens)
        if n not in self._bound:
            one, (args, described) = self._shapes[n], self._args
            of_block = one["MT"] * one["ROW_UNITS"] // (2 if self._mode == GATED else 1)
            self._bound[n] = self._kernels[n].bind(
                sum(-(-tiles // of_block) for tiles in self._tiles) * one["CLUSTER"],
                32 * one["K_SLICES"] * one["ROW_UNITS"],
                (*args, None, self._peers, 0, *described),
                one["SMEM_BYTES"],
            )
        self._bound[n](stream, n_tokens=n_tokens, kept=kept, signals=signals)


class _Peers(NamedTuple):
    """Table of a launch's peers, and macros that announce it."""

    table: GpuArray
    macros: dict[str, int]


def _gated(
    x: GpuArray,
    weights: Sequence[PackedWeight],
    out: GpuArray,
    scale: float,
    norm: _Norm,
    peers: _Peers | None,
    *,
    gelu: bool,
) -> list[_Launch]:
    """Return the launches of gate and up: one, or two if their types differ."""
    gate, up = weights
    if gate.type == up.type:
        return [_Launch(x, [(gate, out), (up, out)], GATED, scale, norm, peers=peers, gelu=gelu)]
    gates = cupy.empty((len(x), gate.shape[0]), cupy.float32)
    first = _Launch(x, [(gate, gates)], STORE, scale, norm, peers=peers)
    return [first, _Launch(x, [(up, out)], GATED_BY, scale, norm, gates=gates, peers=peers, gelu=gelu)]


def _wide(
    x: GpuArray, weights: Sequence[PackedWeight], outs: Sequence[GpuArray], add: bool, gated: bool, scale: float, norm: _Norm
) -> list[wide_cuda.WideLaunch]:
    """Return the launches of up to 128 tokens that share one read of the weights."""

    def launch(pairs: Sequence[tuple[PackedWeight, GpuArray]], mode: int, gates: GpuArray = None) -> wide_cuda.WideLaunch:
        of = pairs[:1] if mode == GATED else pairs
        whole, types = sum(-(-w.whole_rows // TILE_ROWS) for w, _ in of), tuple(sorted({w.type for w, _ in pairs}))
        slices = slices_of(whole, x.shape[1], types, _chip(), gated=mode == GATED)
        return wide_cuda.WideLaunch(x, pairs, mode, scale, norm, slices, gates=gates)

    if not gated:
        parts = _parts(list(zip(weights, outs, strict=True)))
        return [launch(part, ADD if add else STORE) for part in parts]
    gate, up = weights
    if gate.type == up.type:
        return [launch([(gate, outs[0]), (up, outs[0])], GATED)]
    gates = cupy.empty((len(x), gate.shape[0]), cupy.float32)
    return [launch([(gate, gates)], STORE), launch([(up, outs[0])], GATED_BY, gates)]


def _kernel(types: tuple[str, ...], n: int, mode: int, norm: int, constants: dict[str, int]) -> Any:
    macros = {"QUANTS": ",".join(types), "TOKENS": n, "MODE": mode, "NORM": norm, **constants}
    made = kernel(_HERE / "decode.cu", "decode", dependent=True, **macros)
    return made.with_max_carveout() if n <= _CARVEOUT_TOKENS else made


def linear(x: GpuArray, weights: Sequence[PackedWeight], outs: Sequence[GpuArray], *, add: bool = False) -> None:
    """Compute `dflash.kernels.linear.linear` once with float16 `x`; see `DecodeLinear`."""
    DecodeLinear(x, weights, outs, add=add)(len(x))


def bucket(n_tokens: int) -> int:
    """Return the smallest of `BUCKETS` that holds `n_tokens`."""
    return next(n for n in BUCKETS if n >= n_tokens)


def _parts(pairs: list[tuple[PackedWeight, GpuArray]]) -> list[list[tuple[PackedWeight, GpuArray]]]:
    """Split weights, in order, into as few launches as possible."""
    parts: list[list[tuple[PackedWeight, GpuArray]]] = [[]]
    for pair in pairs:
        if len(parts[-1]) == _WEIGHTS or len({w.type for w, _ in (*parts[-1], pair)}) > _TYPES:
            parts.append([])
        parts[-1].append(pair)
    return parts


def _most(weights: Sequence[PackedWeight], *, gated: bool) -> int:
    """Return the largest number of tokens that all launches of some weights can take."""
    if gated and weights[0].type == weights[1].type:
        return most_tokens(**_size(weights, gated=True))
    parts = [[w] for w in weights] if gated else [[w for w, _ in part] for part in _parts([(w, None) for w in weights])]
    return min(most_tokens(**_size(part, gated=False)) for part in parts)


def _size(weights: Sequence[PackedWeight], *, gated: bool) -> dict[str, Any]:
    """Return the arguments of `shape` and `most_tokens` for a launch."""
    of_side = weights[:1] if gated else weights
    return {
        "tiles": sum(-(-w.shape[0] // TILE_ROWS) for w in of_side),
        "whole": sum(-(-w.whole_rows // TILE_ROWS) for w in of_side),
        "width": weights[0].shape[1],
        "types": tuple(sorted({w.type for w in weights})),
        "chip": _chip(),
        "gated": gated,
    }


def _chip() -> Chip:
    about = capabilities()
    return Chip(about.processors, about.block_shared // 1024, about.has_clusters)


def check_projections(x: GpuArray, weights: Sequence[PackedWeight], outs: Sequence[GpuArray], *, gated: bool) -> None:
    """Check that weights and outputs fit the tokens; with `gated`, the two weights have one output."""
    if gated and (len(weights) != 2 or weights[0].shape != weights[1].shape):
        raise KernelError(f"{weights[0].name}: gate and up must be two weights of one shape")
    kind = cupy.float16 if gated else cupy.float32
    for weight, out in zip(weights, (*outs, *outs) if gated else outs, strict=True):
        if weight.shape[1:] != x.shape[1:]:
            raise KernelError(f"{weight.name}: a weight of shape {weight.shape} does not fit tokens of {x.shape[1]}")
        wanted = len(x), weight.shape[0]
        if out.dtype != kind or out.shape != wanted or out.strides[1] != out.itemsize:
            raise KernelError(
                f"{weight.name}: out must be {kind.__name__} {wanted} with contiguous rows, got {out.dtype} {out.shape}"
            )
