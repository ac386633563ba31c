"""RMS norms: of rows, and of the heads of rows with a gate."""

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.arrays import check
from dflash.kernels.norm import cpu

Floats = NDArray[np.float32]

_PARALLEL_SIZE = 1 << 15
_PARALLEL_GATED_SIZE = 1 << 14


def rms_norm(x: Floats, weight: Floats, eps: float, *, out: Floats) -> None:
    """Scale rows to a root mean square of 1, then multiply by a weight.

    Parameters
    ----------
    x : float32 (T, D)
        Rows.
    weight : float32 (D,)
        Gain of each column, as in the file: a GGUF holds ``1 + w`` where the checkpoint holds `w`.
    eps : float
        Added to the mean of the squares.
    out : float32 (T, D)
        May be `x`.

    Raises
    ------
    KernelError
        If an array is strided or has another shape; the message names it.

    Notes
    -----
    ``out = x / sqrt(mean(x ** 2) + eps) * weight``. Moves ``8 * T * D`` bytes. The order of a sum depends only on D.
    """
    n, width = x.shape
    check("x", x, (n, width))
    check("weight", weight, (width,))
    check("out", out, (n, width))
    run = cpu.rms_norm if x.size <= _PARALLEL_SIZE else cpu.rms_norm_parallel
    run(x, weight, eps, out)


def gated_rms_norm(x: Floats, z: Floats, weight: Floats, eps: float, *, out: Floats) -> None:
    """Norm each head of a row, then multiply by the SiLU of a gate.

    Parameters
    ----------
    x : float32 (T, H, V)
        Read-out of the delta rule.
    z : float32 (T, H * V)
        Gate before SiLU.
    weight : float32 (V,)
        Gain, shared by all heads.
    eps : float
        Added to the mean of the squares.
    out : float32 (T, H * V)
        May be `z`.

    Raises
    ------
    KernelError
        If an array is strided or has another shape; the message names it.

    Notes
    -----
    ``out = x / sqrt(mean(x ** 2) + eps) * weight * silu(z)``, the mean over the V values of one head. Moves
    ``12 * T * H * V`` bytes.
    """
    n, heads, width = x.shape
    check("x", x, (n, heads, width))
    check("z", z, (n, heads * width))
    check("weight", weight, (width,))
    check("out", out, (n, heads * width))
    run = cpu.gated_rms_norm if x.size <= _PARALLEL_GATED_SIZE else cpu.gated_rms_norm_parallel
    run(x, z, weight, eps, out)
