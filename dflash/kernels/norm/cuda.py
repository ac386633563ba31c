"""The RMS norm on a GPU."""

from pathlib import Path
from typing import Any

import numpy as np

from dflash.errors import KernelError
from dflash.kernels.gpu.jit import kernel

_SOURCE = Path(__file__).with_name("rms_norm.cu")
_MOST_THREADS = 320


class RmsNorm:
    """An `rms_norm` on fixed arrays, to be run for any number of rows.

    Parameters
    ----------
    x : float32 (T, D)
        Rows, on the device as all arrays.
    weight : float32 (D,)
        Gain of each column.
    eps : float
        Added to the mean of the squares.
    half : float16 (T, D), optional
        Where the rows go for a multiply, beyond 65504 as 65504; may be given as its bits (uint16).
    full : float32 (T, D), optional
        Where they go in full; may be `x`.

    Raises
    ------
    KernelError
        If nothing is to be written, or an array is strided or of another type or shape.

    Notes
    -----
    ``out = x / sqrt(mean(x ** 2) + eps) * weight``. Reads ``4 * D`` bytes a row and writes 2 or 4 times D. A row has the
    same bits in any company.
    """

    def __init__(self, x: Any, weight: Any, eps: float, *, half: Any = None, full: Any = None) -> None:
        width = x.shape[1]
        if half is None and full is None:
            raise KernelError("norm: there must be a place for the rows, half or full")
        for name, array, shape in (("weight", weight, (width,)), ("half", half, x.shape), ("full", full, x.shape)):
            if array is not None and array.shape != shape:
                raise KernelError(f"norm: {name} must be {shape}, got {array.shape}")
        self._rows, block = len(x), threads(width)
        run = kernel(_SOURCE, "rms_norm", dependent=True, ROW_DIM=width, THREADS=block)
        self._run = run.bind(1, block, (x, weight, half, full, np.float32(eps)))

    def __call__(self, n_rows: int, stream: Any = None) -> None:
        """Norm the first `n_rows` rows."""
        assert 0 < n_rows <= self._rows
        self._run(stream, grid=n_rows)


def threads(width: int) -> int:
    """How many work on a row."""
    steps = -(-width // (1 if width % 4 else 4))
    each = -(-steps // _MOST_THREADS)
    return -(-steps // (32 * each)) * 32
