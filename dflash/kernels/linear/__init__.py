"""Matrix multiplies of activations with packed (quantised) weights."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dflash.errors import KernelError
from dflash.kernels.formats import FORMATS, Matrix
from dflash.kernels.formats.byte_cpu import byte_dot_function
from dflash.kernels.formats.cpu import DOT_ROWS, dot_function, step_bytes, unpack_function
from dflash.kernels.formats.integer_cpu import integer_dot_function, integer_unpack_function
from dflash.kernels.formats.integers import BLOCK
from dflash.kernels.formats.records import SMALL
from dflash.kernels.linear import cpu
from dflash.kernels.linear.integer_tiles import tile_function
from dflash.kernels.profile import timed

Floats = NDArray[np.float32]

_UNPACK_AT_ONCE = 1 << 22  # weights of a type without native kernels that are unpacked at a time


def linear(x: Floats, weights: Sequence[Matrix], outs: Sequence[Floats], *, add: bool = False) -> None:
    """Multiply the same tokens with one or more weight matrices, in one launch.

    Parameters
    ----------
    x : float32 (T, K)
        Activations of the tokens; rows contiguous.
    weights : sequence of Matrix (R, K)
        Weights of any types.
    outs : sequence of float32 (T, R)
        Receive the products, one array for each weight; rows contiguous.
    add : bool
        Add to the values of `outs` (the residual stream) instead of overwriting them.

    Raises
    ------
    KernelError
        If a width or number of rows does not fit; the message names the weight.

    Notes
    -----
    ``out = x @ W.T`` in float32, from the exact values of the weights. The order of a sum is fixed: lane i of 16 adds the
    products i, i + 16, ... in turn, then the lanes are added as a tree. So a token has the same bits in every batch. Reads
    each weight once, ``R * row_bytes`` bytes; memory-bound for few tokens.

    For quantised weights, each 256 values of a token are rounded to int16, in units of a 32767th of the largest. Their
    products with whole numbers ``q`` or ``scale * q`` are summed exactly in int32, and each block is scaled in float32. The
    RMS error of a product is about 3e-5 of its RMS, where a token has a value of 24 times the RMS (SmolLM2) about 1e-4;
    float16, which GPUs multiply, has 2e-4.
    """
    _check(x, weights, outs)
    native = [(w, o) for w, o in zip(weights, outs, strict=True) if w.native]
    if native:
        modes = [cpu.ADD if add else cpu.STORE] * len(native)
        plan = _plan(x, [weight for weight, _ in native], [out for _, out in native], modes)
        cpu.multiply(plan)
    for weight, out in zip(weights, outs, strict=True):
        if not weight.native:
            _linear_by_parts(x, weight, out, add)


def gated_linear(x: Floats, gate: Matrix, up: Matrix, out: Floats, *, gelu: bool = False) -> None:
    """Multiply with a gate and an up projection and combine the products, in one launch.

    Parameters
    ----------
    x : float32 (T, K)
        Activations of the tokens; rows contiguous.
    gate, up : Matrix (R, K)
        Weights of any types.
    out : float32 (T, R)
        Receives the result; rows contiguous.
    gelu : bool
        Use GELU, in its tanh form, in place of SiLU.

    Raises
    ------
    KernelError
        If a width or number of rows does not fit.

    Notes
    -----
    ``out = silu(x @ gate.T) * (x @ up.T)``; sums as in `linear`.

    References
    ----------
    Shazeer 2020, GLU Variants Improve Transformer, arXiv 2002.05202; Hendrycks, Gimpel 2016, arXiv 1606.08415.
    """
    _check(x, (gate, up), (out, out))
    gate, up = _native(gate), _native(up)
    cpu.multiply(_plan(x, (gate, up), (out, out), _gated_modes(gelu=gelu)))


class PackedLinear:
    """A `linear` or `gated_linear` on fixed arrays, planned once and run for any number of tokens.

    Parameters
    ----------
    x, weights, outs
        As for `linear`; the arrays' rows are the capacity in tokens.
    add, gated, gelu : bool
        Compute `linear` with `add`, or `gated_linear` with two weights and one output, with GELU if wanted.
    name : str
        Name in profiles.

    Attributes
    ----------
    native : bool
        Kernels read the types of all weights, so there is a plan.
    """

    def __init__(
        self,
        x: Floats,
        weights: Sequence[Matrix],
        outs: Sequence[Floats],
        *,
        add: bool = False,
        gated: bool = False,
        gelu: bool = False,
        name: str = "linear",
    ) -> None:
        modes: tuple[int, ...]
        if gated:
            outs, modes = (*outs, *outs), _gated_modes(gelu=gelu)
        else:
            modes = (cpu.ADD if add else cpu.STORE,) * len(weights)
        _check(x, weights, outs)
        self._arrays = x, weights, outs
        self.native = all(w.native for w in weights)
        self._add, self._gated, self._gelu = add, gated, gelu
        self._run = timed(name)(self._multiply if self.native else self._by_parts)
        if self.native:
            self._plan = _plan(x, weights, outs, modes)

    def __call__(self, n_tokens: int) -> None:
        """Run for the first `n_tokens` rows."""
        self._run(n_tokens)

    def plan(self, n_tokens: int) -> NDArray[np.int64]:
        """Return the plan for `n_tokens` rows, int64 (W, COLUMNS), which the next call changes; only if `native`."""
        if self._plan[0, cpu.TOKENS] != n_tokens:
            self._plan[:, cpu.TOKENS] = n_tokens
        return self._plan

    def _multiply(self, n_tokens: int) -> None:
        cpu.multiply(self.plan(n_tokens))

    def _by_parts(self, n_tokens: int) -> None:
        x, weights, outs = self._arrays
        rows = [o[:n_tokens] for o in outs]
        if self._gated:
            gate, up = weights
            gated_linear(x[:n_tokens], gate, up, rows[0], gelu=self._gelu)
        else:
            linear(x[:n_tokens], weights, rows, add=self._add)


def path_of(kind: str, n_tokens: int) -> str:
    """Return how a multiply with weights of a type works for a number of tokens."""
    if kind not in FORMATS:
        return "unpacked as a whole"
    return "dot" if n_tokens <= (cpu._FEW if FORMATS[kind].integers else len(DOT_ROWS)) else "tiles"


def _gated_modes(*, gelu: bool) -> tuple[int, int]:
    return (cpu.GELU_GATE if gelu else cpu.GATE), cpu.UP


def _check(x: Floats, weights: Sequence[Matrix], outs: Sequence[Floats]) -> None:
    if x.dtype != np.float32 or x.ndim != 2 or (len(x) > 1 and x.strides[1] != 4):
        raise KernelError(f"linear: x must be float32 (T, K) with contiguous rows, got {x.dtype} {x.shape}")
    for weight, out in zip(weights, outs, strict=True):
        if weight.shape[1] != x.shape[1]:
            raise KernelError(f"{weight.name}: rows of {weight.shape[1]} weights do not fit tokens of {x.shape[1]}")
        if out.dtype != np.float32 or out.shape != (len(x), weight.shape[0]) or (len(x) and out.strides[1] != 4):
            raise KernelError(
                f"{weight.name}: out must be float32 {(len(x), weight.shape[0])} with contiguous rows, "
                f"got {out.dtype} {out.shape}"
            )


def _plan(x: Floats, weights: Sequence[Matrix], outs: Sequence[Floats], modes: Sequence[int]) -> NDArray[np.int64]:
    plan = np.zeros((len(weights), cpu.COLUMNS), np.int64)
    for row, weight, out, mode in zip(plan, weights, outs, modes, strict=True):
        describe(row, weight)
        row[cpu.MODE], row[cpu.TOKENS] = mode, len(x)
        row[cpu.X], row[cpu.X_BYTES] = x.ctypes.data, x.strides[0]
        row[cpu.OUT], row[cpu.OUT_BYTES] = out.ctypes.data, out.strides[0]
    return plan


def describe(row: NDArray[np.int64], weight: Matrix) -> None:
    """Fill the columns of a plan's row that describe the weight."""
    n_weights, _ = step_bytes(weight.type)
    row[cpu.DATA], row[cpu.ROWS], row[cpu.ROW_BYTES] = weight.address, weight.shape[-2], weight.row_bytes
    row[cpu.WIDTH], row[cpu.STEPS] = weight.shape[-1], weight.shape[-1] // n_weights
    made = FORMATS[weight.type]
    row[cpu.INTEGER] = 0 if made.integers is None else 1 if made.block.elements == BLOCK else SMALL
    row[cpu.MULTIPLY] = tile_function(int(row[cpu.INTEGER])).address
    unpack, dot = (integer_unpack_function, integer_dot_function) if row[cpu.INTEGER] else (unpack_function, dot_function)
    row[cpu.UNPACK] = unpack(weight.type).address
    byte_dot = byte_dot_function(weight.type)
    row[cpu.BYTE_DOT] = byte_dot.address if byte_dot else 0
    n_dots = cpu.DOT_TOKENS if row[cpu.INTEGER] else len(DOT_ROWS)
    row[cpu.DOT : cpu.DOT + n_dots] = [dot(weight.type, n + 1).address for n in range(n_dots)]


def _native(weight: Matrix) -> Matrix:
    if weight.native:
        return weight
    return Matrix(weight.unpacked().view(np.uint8), "F32", weight.name)


def _linear_by_parts(x: Floats, weight: Matrix, out: Floats, add: bool) -> None:
    """Multiply with a type without native kernels: unpack some rows at a time and multiply them as float32."""
    at_once = max(1, _UNPACK_AT_ONCE // weight.shape[1])
    for start in range(0, weight.shape[0], at_once):
        rows = slice(start, start + at_once)
        part = Matrix(weight.rows(rows).unpacked().view(np.uint8), "F32", weight.name)
        linear(x, (part,), (out[:, rows],), add=add)
