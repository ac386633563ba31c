"""The RMS norm on a GPU in two parts, which the multiplies around it carry."""

from typing import Any

from dflash.errors import KernelError

_TILE = 16


class SplitNorm:
    """An RMS norm that is no launch of its own.

    The multiply that adds to a stream and has this norm behind it writes the rows times the gain, and sums of their squares;
    the one that has it before it applies the factor to its products (`dflash.kernels.linear.cuda.PackedLinear`).

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
        self.weight, self.eps, self.half, self.squares = weight, eps, half, squares


def sums(width: int) -> int:
    """How many sums of squares a row has."""
    return -(-width // _TILE)


def carried(**norms: Any) -> dict[str, SplitNorm]:
    """Of the norms before and behind a multiply, those that it carries."""
    return {place: norm for place, norm in norms.items() if isinstance(norm, SplitNorm)}
