"""Arrays as kernels want them."""

import math
import mmap
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.errors import KernelError
from dflash.kernels.ragged import PENDING, Ragged

_FLOAT32 = np.dtype(np.float32)
_LINE = 16


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


def zeros(*shape: int, dtype: type = np.float32) -> NDArray[Any]:
    """Make an array of zeros that takes memory only where it is written, page by page.

    Parameters
    ----------
    *shape : int
    dtype : type
        Of the elements.

    Notes
    -----
    Begins on a page, and so on a cache line: a vector that crosses one costs two loads. NumPy's own large arrays are backed
    by huge pages, of which one written number takes 2 MiB.
    """
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if n_bytes == 0:
        return np.zeros(shape, dtype)
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    memory = mmap.mmap(-1, n_bytes, **private)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)


def empty(*shape: int) -> NDArray[np.float32]:
    """Make an array of float32 that begins on a cache line, whatever its values are."""
    n = math.prod(shape)
    room = np.empty(n + _LINE, np.float32)
    start = -(room.ctypes.data // 4) % _LINE
    return room[start : start + n].reshape(shape)
