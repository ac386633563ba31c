"""The RMS norm on a GPU in two parts, which the multiplies around it carry."""

from pathlib import Path
from typing import Any

from dflash.errors import KernelError
from dflash.kernels.jit import kernel

_SOURCE = Path(__file__).with_name("split.cu")
_TILE = 16
_MOST_THREADS = 320


class SplitNorm:
    """An RMS norm whose factor a multiply applies to its products, so that no launch of its own is needed.

    A multiply that adds to a stream and has this norm behind it prepares it (`dflash.kernels.linear.cuda.Launch`); called,
    the norm is prepared by a launch, for rows that no multiply wrote.

    Parameters
    ----------
    x : float32 (T, D)
        Rows, on the device as all arrays.
    weight : float32 (D,)
        Gain of each column.
    eps : float
        Added to the mean of the squares.
    half : float16 (T, D)
        Where ``x * weight / 8`` goes, beyond 65504 as 65504.
    squares : float32 (T, S)
        Where sums of squares go, one for each 16 columns: S is D / 16, rounded up.

    Raises
    ------
    KernelError
        If an array is strided or of another type or shape.
    """

    def __init__(self, x: Any, weight: Any, eps: float, *, half: Any, squares: Any) -> None:
        n, width = x.shape
        shapes = ("weight", weight, (width,)), ("half", half, (n, width)), ("squares", squares, (n, sums(width)))
        for name, array, shape in shapes:
            if array.shape != shape:
                raise KernelError(f"norm: {name} must be {shape}, got {array.shape}")
        self.weight, self.eps, self.half, self.squares, self._rows = weight, eps, half, squares, n
        block = min(-(-sums(width) // 32) * 32, _MOST_THREADS)
        run = kernel(_SOURCE, "split_norm", dependent=True, DIM=width)
        self._run = run.bind(1, block, (x, weight, half, squares))

    def __call__(self, n_rows: int, stream: Any = None) -> None:
        """Prepare the first `n_rows` rows."""
        assert 0 < n_rows <= self._rows
        self._run(stream, grid=n_rows)


def sums(width: int) -> int:
    """How many sums of squares a row has."""
    return -(-width // _TILE)
