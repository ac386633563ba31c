"""Checks of kernel arguments, and aligned or lazily backed host arrays."""

import ctypes
import math
import mmap
import sys
from contextlib import suppress
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dflash.errors import KernelError
from dflash.kernels.ragged import Ragged

_FLOAT32 = np.dtype(np.float32)
_LINE = 16  # float32 in a cache line

GpuArray: TypeAlias = Any
"""``cupy.ndarray``, which has no static type: an array in the memory of a GPU."""

Stream: TypeAlias = Any
"""``cupy.cuda.Stream``, in which work is launched; None is the current one of the thread."""


def check(name: str, array: Any, shape: tuple[int, ...], dtype: Any = _FLOAT32) -> None:
    """Check the shape, type and layout of an array before a kernel reads its memory.

    name: name of the array in the signature, for the message; or the op and the name, such as ``rotate: q``.
    """
    kinds = dtype if isinstance(dtype, tuple) else (dtype,)
    if array.shape != shape or array.dtype not in kinds or not array.flags.c_contiguous:
        strided = "" if array.flags.c_contiguous else "strided "
        raise KernelError(
            f"{name}: wanted contiguous {np.dtype(kinds[0])} {shape}, got {strided}{array.dtype} {array.shape}"
        )


def check_rows(batch: Ragged, n: int, n_pending: int) -> None:
    """Check that a batch describes `n` rows, and that no sequence has more than `n_pending` pending rows."""
    if batch.row_starts[-1] != n:
        raise KernelError(f"batch: describes {batch.row_starts[-1]} rows, but the arrays have {n}")
    if n > n_pending:
        most = int(np.max(np.diff(batch.row_starts) * (batch.prefill == 0)))
        if most > n_pending:
            raise KernelError(f"batch: a sequence has {most} pending rows, at most {n_pending} are allowed")


def zeros(*shape: int, dtype: type = np.float32) -> NDArray[Any]:
    """Allocate an array of zeros whose pages take physical memory only once they are written.

    The array starts on a page boundary, so also on a cache line: a vector load across two cache lines costs two loads.
    NumPy backs large arrays with huge pages, where a single written number takes 2 MiB.
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


def release(array: NDArray[Any]) -> None:
    """Give the physical memory of an array of `zeros` back to the system, on Linux; its values are undefined afterwards."""
    if sys.platform == "linux" and array.nbytes:
        whole = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        _libc().madvise(ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(whole), mmap.MADV_DONTNEED)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def empty(*shape: int) -> NDArray[np.float32]:
    """Allocate an uninitialised float32 array that starts on a cache line."""
    n = math.prod(shape)
    room = np.empty(n + _LINE, np.float32)
    start = -(room.ctypes.data // 4) % _LINE
    return room[start : start + n].reshape(shape)
