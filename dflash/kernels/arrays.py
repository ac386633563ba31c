"""Arrays as kernels want them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.errors import KernelError
from dflash.kernels.ragged import PENDING, Ragged

_FLOAT32 = np.dtype(np.float32)
_CACHE_LINE = 64


def check(name: str, array: Any, shape: tuple[int, ...]) -> None:
    """Refuse an array that a kernel would misread.

    Parameters
    ----------
    name : str
        What the array is called in the signature.
    array : array
        Of any library.
    shape : tuple of int
        The shape it must have.

    Raises
    ------
    KernelError
        If it is not C-contiguous float32 of that shape.
    """
    if array.shape != shape or array.dtype != _FLOAT32 or not array.flags.c_contiguous:
        strided = "" if array.flags.c_contiguous else "strided "
        raise KernelError(f"{name}: wanted contiguous float32 {shape}, got {strided}{array.dtype} {array.shape}")


def check_rows(batch: Ragged, n: int) -> None:
    """Refuse a batch that does not describe `n` rows, or that leaves more of them pending than there is room for.

    Parameters
    ----------
    batch : Ragged
        What the rows are.
    n : int
        How many there are.

    Raises
    ------
    KernelError
        If a sequence that is not `whole` has more than `PENDING` rows, or the rows are not `n`.
    """
    if batch.first[-1] != n:
        raise KernelError(f"batch: describes {batch.first[-1]} rows, but the arrays have {n}")
    if n > PENDING:
        most = int(np.max(np.diff(batch.first) * (batch.whole == 0)))
        if most > PENDING:
            raise KernelError(f"batch: a sequence has {most} pending rows, at most {PENDING} are allowed")


def zeros(*shape: int) -> NDArray[np.float32]:
    """Make a float32 array of zeros that begins on a cache line: a vector that crosses one costs two loads."""
    size = int(np.prod(shape))
    room = np.zeros(4 * size + _CACHE_LINE, np.uint8)
    start = -room.ctypes.data % _CACHE_LINE
    return room[start : start + 4 * size].view(np.float32).reshape(shape)
