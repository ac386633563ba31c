"""The part of CuPy that dflash and its tests use, on memory of the host, for the emulator."""

from numpy import bool_, float16, float32, float64, int8, int16, int32, int64, nan, uint8, uint16, uint32, uint64

from cupy import cuda, random
from cupy.arrays import (
    array,
    asarray,
    ascontiguousarray,
    empty,
    empty_like,
    full,
    get_default_memory_pool,
    ndarray,
    numpy_function,
    ones,
    zeros,
    zeros_like,
)

__version__ = "13.0.0+emulated"
__getattr__ = numpy_function
