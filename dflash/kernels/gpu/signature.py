"""The parameter list of a CUDA entry point, and the conversion of arguments to it."""

import ctypes
import re
from typing import Any

import numpy as np

from dflash.errors import KernelError
from dflash.kernels.gpu.driver import TensorMap

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_TYPES = {
    "float": np.float32,
    "double": np.float64,
    "int": np.int32,
    "unsigned": np.uint32,
    "unsigned int": np.uint32,
    "unsigned char": np.uint8,
    "unsigned short": np.uint16,
    "long long": np.int64,
    "unsigned long long": np.uint64,
    "size_t": np.uint64,
}


class Parameter:
    """One parameter of an entry point.

    text: declaration, such as ``const float* x``.
    dtype: element type of an array or type of a number; None for a tensor map.
    """

    def __init__(self, text: str) -> None:
        text = re.sub(r"\b(const|__restrict__|__grid_constant__)\b", " ", text)
        match = re.fullmatch(r"\s*([\w\s]+?)\s*(\*?)\s*(\w+)\s*", text)
        kind = " ".join(match[1].split()) if match else ""
        if match is None or (kind not in _TYPES and kind != "TensorMap"):
            raise KernelError(f"parameter {text.strip()!r}: its type must be one of {', '.join(_TYPES)}, TensorMap")
        self.name, self.is_array = match[3], bool(match[2])
        self.dtype: np.dtype[Any] | None = None if kind == "TensorMap" else np.dtype(_TYPES[kind])

    def cell(self, value: Any, where: str) -> Any:
        """Check an argument and return a ctypes object that holds it, for the launch to point at.

        An array of float16 is accepted for ``unsigned short``. None becomes a null pointer.
        """
        if self.is_array:
            return ctypes.c_uint64(0 if value is None else self._array(value, where).data.ptr)
        if self.dtype is None:
            if not isinstance(value, TensorMap):
                raise KernelError(f"{where}: {self.name} is a tensor map, got {type(value).__name__}")
            return value
        if hasattr(value, "shape") and value.shape != ():
            raise KernelError(f"{where}: {self.name} is a number, got an array of shape {value.shape}")
        return np.ctypeslib.as_ctypes_type(self.dtype)(self.dtype.type(value).item())

    def _array(self, value: Any, where: str) -> Any:
        if not hasattr(value, "__cuda_array_interface__"):
            raise KernelError(f"{where}: {self.name} is a device array of {self.dtype}, got {type(value).__name__}")
        fits = value.dtype == self.dtype or (self.dtype == np.uint16 and value.dtype == np.float16)
        if not fits or not value.flags.c_contiguous:
            strided = "" if value.flags.c_contiguous else "strided "
            raise KernelError(f"{where}: {self.name} is contiguous {self.dtype}, got {strided}{value.dtype} {value.shape}")
        return value


def parameters(text: str, entry: str) -> tuple[Parameter, ...]:
    """Read the parameter list of an ``extern "C" __global__`` function."""
    text = _COMMENT.sub(" ", text)
    match = re.search(rf'extern\s+"C"\s+__global__\s+void\s+(?:__\w+__\([^)]*\)\s+)*{entry}\s*\(([^)]*)\)', text)
    if not match:
        raise KernelError(f'{entry}: the source has no extern "C" __global__ function of this name')
    return tuple(Parameter(part) for part in match[1].split(",") if part.strip())
