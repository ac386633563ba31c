"""Compile the CUDA sources that lie beside the ops, and launch them with their arguments checked."""

import functools
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dflash.errors import KernelError

OPTIONS = ("-std=c++17",)
"""Given to NVRTC besides the constants."""

_INCLUDE = re.compile(r'^[ \t]*#include[ \t]+"([^"]+)"[ \t]*$', re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_SHARED_FOR_ALL = 48 * 1024

_TYPES = {
    "float": np.float32,
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

    Parameters
    ----------
    text : str
        Its declaration, such as ``const float* x``.

    Attributes
    ----------
    name : str
    dtype : numpy.dtype
    is_array : bool
    """

    def __init__(self, text: str) -> None:
        text = re.sub(r"\b(const|__restrict__)\b", " ", text)
        match = re.fullmatch(r"\s*([\w\s]+?)\s*(\*?)\s*(\w+)\s*", text)
        kind = " ".join(match[1].split()) if match else ""
        if kind not in _TYPES:
            raise KernelError(f"parameter {text.strip()!r}: its type must be one of {', '.join(_TYPES)}")
        self.name, self.is_array, self.dtype = match[3], bool(match[2]), np.dtype(_TYPES[kind])

    def convert(self, value: Any, where: str) -> Any:
        """Cast a scalar; refuse an array that the kernel would misread."""
        if not self.is_array:
            if hasattr(value, "shape") and value.shape != ():
                raise KernelError(f"{where}: {self.name} is a number, got an array of shape {value.shape}")
            return self.dtype.type(value)
        if not hasattr(value, "__cuda_array_interface__"):
            raise KernelError(f"{where}: {self.name} is a device array of {self.dtype}, got {type(value).__name__}")
        if value.dtype != self.dtype or not value.flags.c_contiguous:
            strided = "" if value.flags.c_contiguous else "strided "
            raise KernelError(f"{where}: {self.name} is contiguous {self.dtype}, got {strided}{value.dtype} {value.shape}")
        return value


def source(path: Path) -> str:
    """Text of a file with its own includes pasted in, each once, and lines numbered as in the files.

    Parameters
    ----------
    path : Path
        A ``.cu`` or ``.cuh`` file.

    Returns
    -------
    str
        What NVRTC compiles; it needs no search path.
    """
    return _paste(path, set())


def _paste(path: Path, seen: set[Path]) -> str:
    seen.add(path)
    text = path.read_text(encoding="utf-8")

    def replace(match: re.Match[str]) -> str:
        inner = (path.parent / match[1]).resolve()
        after = text.count("\n", 0, match.start()) + 2
        pasted = "" if inner in seen else _paste(inner, seen)
        return f'{pasted}\n#line {after} "{path.name}"'

    return f'#line 1 "{path.name}"\n' + _INCLUDE.sub(replace, text)


def macros(constants: dict[str, Any]) -> tuple[str, ...]:
    """Options that define `constants`."""
    return tuple(f"-D{name}={value}" for name, value in sorted(constants.items()))


def parameters(text: str, entry: str) -> tuple[Parameter, ...]:
    """Read the parameter list of an ``extern "C" __global__`` function.

    Raises
    ------
    KernelError
        If there is no such function or it has a parameter of another type.
    """
    text = _COMMENT.sub(" ", text)
    pattern = rf'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s+)?{entry}\s*\(([^)]*)\)'
    match = re.search(pattern, text)
    if not match:
        raise KernelError(f'{entry}: the source has no extern "C" __global__ function of this name')
    return tuple(Parameter(part) for part in match[1].split(",") if part.strip())


@functools.cache
def _compiled(path: Path, entry: str, options: tuple[str, ...], device: int) -> tuple[Any, tuple[Parameter, ...]]:
    import cupy

    text = source(path)
    try:
        with cupy.cuda.Device(device):
            module = cupy.RawModule(code=text, options=options, backend="nvrtc")
            return module.get_function(entry), parameters(text, entry)
    except (cupy.cuda.compiler.CompileException, cupy.cuda.driver.CUDADriverError) as error:
        raise KernelError(f"{entry} in {path.name} with {' '.join(options)} does not compile: {error}") from error


def kernel(path: Path, entry: str, **constants: Any) -> Callable[..., None]:
    """Compile an entry point for the current device.

    Parameters
    ----------
    path : Path
        The source.
    entry : str
        Its ``extern "C" __global__`` function.
    **constants
        Macros: what a model fixes.

    Returns
    -------
    callable
        ``launch(grid, block, args, shared=0, stream=None)``; `grid` and `block` are numbers or tuples, `args` arrays and
        numbers in the order of the C signature.

    Raises
    ------
    KernelError
        If it does not compile; the message names file and line. A launch raises it for arguments that do not fit, and
        with ``DFLASH_DEBUG_SYNC=1``, which waits after each launch, for a fault on the device.
    """
    import cupy

    function, expected = _compiled(path, entry, OPTIONS + macros(constants), cupy.cuda.Device().id)
    where = f"{entry} in {path.name}"
    debug = os.environ.get("DFLASH_DEBUG_SYNC") == "1"

    def launch(
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        args: Sequence[Any],
        shared: int = 0,
        stream: Any = None,
    ) -> None:
        if len(args) != len(expected):
            raise KernelError(f"{where}: takes {len(expected)} arguments, got {len(args)}")
        values = tuple(p.convert(a, where) for p, a in zip(expected, args, strict=True))
        if shared > _SHARED_FOR_ALL and function.max_dynamic_shared_size_bytes < shared:
            function.max_dynamic_shared_size_bytes = shared
        grid = grid if isinstance(grid, tuple) else (grid,)
        block = block if isinstance(block, tuple) else (block,)
        try:
            function(grid, block, values, shared_mem=shared, stream=stream)
            if debug:
                (stream or cupy.cuda.get_current_stream()).synchronize()
        except (cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError) as error:
            raise KernelError(f"{where}: {error}") from error

    return launch
