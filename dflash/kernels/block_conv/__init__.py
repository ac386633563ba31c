"""The short convolution of a draft model's block, with taps that depend on the row."""

import numpy as np
from numpy.typing import NDArray

from dflash.errors import KernelError
from dflash.kernels.arrays import check
from dflash.kernels.block_conv import cpu

Floats = NDArray[np.float32]

SIDES = 2
"""Number of places of the convolution in a sublayer: 0 before it, 1 after it."""


def block_conv(
    x: Floats, change: Floats, base: Floats, first: NDArray[np.int32], *, side: int, out: Floats, add: bool = False
) -> None:
    """Mix every row with the rows before it in its block.

    Parameters
    ----------
    x : float32 (N, D)
        Rows of the blocks of several sequences.
    change : float32 (N, 2 * K * D / G)
        Change of the taps by each row: for each side, tap and group of G columns, the side slowest.
    base : float32 (2, K, D)
        Taps of each side and column; tap 0 is for the row itself, tap t for the one t rows before.
    first : int32 (S + 1,)
        Rows of block s are ``first[s]:first[s + 1]``.
    side : int
        0 before the sublayer, 1 after it.
    out : float32 (N, D)
        Receives the result; must not be `x`.
    add : bool
        Add to what `out` holds (the residual stream) in place of overwriting it.

    Raises
    ------
    KernelError
        If a shape, a type or a number does not fit, or an array is strided; the message names it.

    Notes
    -----
    ``out[i, c] = sum over t of (base[side, t, c] + change[i, side, t, c // G]) * x[i - t, c]``, where a row before the block
    is zero; the sum runs from tap 0 on. Moves ``12 * N * D`` bytes.
    """
    n, width = x.shape
    if base.ndim != 3 or base.shape[0] != SIDES or not 0 <= side < SIDES:
        raise KernelError(f"block_conv: base must be float32 (2, K, D) and side 0 or 1, got {base.shape} and {side}")
    taps = base.shape[1]
    groups = change.shape[-1] // (SIDES * taps)
    if not groups or width % groups:
        raise KernelError(f"block_conv: change of {change.shape} makes no groups of {width} columns with {taps} taps")
    check("block_conv: x", x, (n, width))
    check("block_conv: change", change, (n, SIDES * taps * groups))
    check("block_conv: base", base, (SIDES, taps, width))
    check("block_conv: out", out, (n, width))
    if first.dtype != np.int32 or first.ndim != 1 or not first.flags.c_contiguous or first[0] or first[-1] != n:
        raise KernelError(f"block_conv: first must be int32 and cover {n} rows, got {first.dtype} {first}")
    cpu.block_conv(x, change, base, first, side=side, out=out, add=add)
