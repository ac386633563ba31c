"""The RMS norm on a GPU, fused into the matrix multiplies before and after it."""

from typing import Any

from dflash.errors import KernelError
from dflash.kernels.arrays import GpuArray

_TILE = 16  # columns of a sum of squares


class SplitNorm:
    """An RMS norm without a launch of its own.

    The multiply before the norm, which adds to the residual stream, also writes the rows times the gain and sums of their
    squares (epilogue). The multiply after the norm scales its products by the inverse RMS
    (`dflash.kernels.linear.cuda.DecodeLinear`).

    x: float32 (T, D); rows; all arrays are on the device.
    weight: float32 (D,); gain of each column.
    half: float16 (T, D); receives ``x * weight / 8``, clamped to 65504.
    squares: float32 (T, S); receives sums of squares, one for each 16 columns; S is D / 16, rounded up.
    """

    def __init__(self, x: GpuArray, weight: GpuArray, eps: float, *, half: GpuArray, squares: GpuArray) -> None:
        n, width = x.shape
        shapes = ("weight", weight, (width,)), ("half", half, (n, width)), ("squares", squares, (n, sums(width)))
        for name, array, shape in shapes:
            if array.shape != shape:
                raise KernelError(f"norm: {name} must be {shape}, got {array.shape}")
        self.weight, self.eps, self.half, self.squares = weight, eps, half, squares


def sums(width: int) -> int:
    """Return the number of sums of squares of a row."""
    return -(-width // _TILE)


def carried(**norms: Any) -> dict[str, Any]:
    """Return the norms that are fused into a multiply, out of its input and output norms."""
    return {place: norm for place, norm in norms.items() if isinstance(norm, SplitNorm)}
