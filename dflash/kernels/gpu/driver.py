"""CUDA driver functions that CuPy does not expose: launches with attributes, and tensor maps."""

import ctypes
import sys
from functools import cache
from typing import Any

from dflash.errors import DeviceLost, KernelError
from dflash.kernels.gpu.lost import STICKY, first_failure

_NOT_CURRENT = 201
_PROGRAMMATIC_SERIALIZATION = 6
_STATIC_SHARED, _MAX_DYNAMIC_SHARED, _CARVEOUT = 1, 8, 9


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute``: an id and 64 bytes, of which the first four are used here."""

    _fields_ = (("id", ctypes.c_int), ("unused", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("n_attributes", ctypes.c_uint),
    )


class TensorMap(ctypes.Structure):
    """``CUtensorMap``: describes a matrix and its tiles to the copy engine (TMA); passed by value.

    array: the matrix, which lives as long as the map.
    """

    array: Any
    _fields_ = (("words", ctypes.c_uint64 * 16),)


_DEPENDENT = _Attribute(id=_PROGRAMMATIC_SERIALIZATION, value=1)


@cache
def library() -> ctypes.CDLL:
    """Return the CUDA driver library."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise KernelError(f"no CUDA driver: {error}") from error


def check(code: int, what: str) -> None:
    """Raise an error for a driver result other than success; `what` names the call in the message."""
    if not code:
        return
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    library().cuGetErrorName(code, ctypes.byref(name))
    library().cuGetErrorString(code, ctypes.byref(text))
    words = ": ".join(t.value.decode() for t in (name, text) if t.value) or f"CUDA error {code}"
    raise (DeviceLost if code in STICKY else KernelError)(f"{what}: {words}{first_failure(code)}")


def config(grid: tuple[int, ...], block: tuple[int, ...], shared: int, *, dependent: bool) -> LaunchConfig:
    """Describe a launch; a `dependent` launch may start before the previous kernel of its stream has finished."""
    made = LaunchConfig(shared=shared)
    made.grid[:] = (*grid, 1, 1)[:3]
    made.block[:] = (*block, 1, 1)[:3]
    if dependent:
        made.attributes = ctypes.pointer(_DEPENDENT)
        made.n_attributes = 1
    return made


def load_now(function: int) -> None:
    """Load a function immediately instead of at its first launch."""
    if hasattr(library(), "cuFuncLoad"):
        check(library().cuFuncLoad(ctypes.c_void_p(function)), "cuFuncLoad")


def static_shared(function: int) -> int:
    """Return the bytes of shared memory that a function declares itself."""
    return _function_attribute(function, _STATIC_SHARED)


def allow_shared(function: int, n_bytes: int, what: str) -> None:
    """Allow a function at least `n_bytes` of dynamic shared memory, and never less than others have allowed it."""
    if n_bytes > _function_attribute(function, _MAX_DYNAMIC_SHARED):
        check(library().cuFuncSetAttribute(ctypes.c_void_p(function), _MAX_DYNAMIC_SHARED, n_bytes), what)


def _function_attribute(function: int, number: int) -> int:
    value = ctypes.c_int()
    check(library().cuFuncGetAttribute(ctypes.byref(value), number, ctypes.c_void_p(function)), "cuFuncGetAttribute")
    return value.value


def prefer_max_carveout(function: int) -> None:
    """Prefer as much shared memory of a multiprocessor as there is, in place of L1 cache, while a function runs."""
    check(library().cuFuncSetAttribute(ctypes.c_void_p(function), _CARVEOUT, 100), "carve-out of shared memory")


def is_no_context(code: int) -> bool:
    """Return whether a launch failed because this thread has no current context."""
    return code == _NOT_CURRENT


def tensor_map(array: Any, box: tuple[int, int]) -> TensorMap:
    """Return the tensor map that copies boxes of a matrix to shared memory, of float16 and int8 with a 128-byte swizzle.

    array: float16, int8 or uint32 (R, K); device array; rows contiguous, the row stride a multiple of 16 bytes.
    box: rows and columns of a copy; at most 128 bytes of a row, or a multiple of 4 up to 256 of uint32. Rows beyond R and
        columns beyond K are filled with zeros.
    """
    room = (ctypes.c_char * (2 * ctypes.sizeof(TensorMap)))()
    made = TensorMap.from_buffer(room, -ctypes.addressof(room) % 64)  # the driver requires an alignment of 64 bytes
    words = array.dtype == "uint32"
    code = library().cuTensorMapEncodeTiled(
        ctypes.byref(made),
        {"uint32": 2, "int8": 0}.get(array.dtype.name, 6),  # uint8 in place of int8; float16
        2,
        ctypes.c_void_p(array.data.ptr),
        (ctypes.c_uint64 * 2)(array.shape[1], array.shape[0]),
        (ctypes.c_uint64 * 1)(array.strides[0]),
        (ctypes.c_uint32 * 2)(box[1], box[0]),
        (ctypes.c_uint32 * 2)(1, 1),
        0,  # not interleaved
        0 if words else 3,  # swizzle of 128 bytes
        3,  # L2 fetches 256 bytes
        0,  # zeros beyond the edge
    )
    check(code, f"tensor map of {array.shape} in boxes of {box}")
    made.array = array
    return made
