"""The GPU: whether there is one that can be used, its memory, streams and graphs. CuPy is imported by the first call."""

import ctypes
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.errors import KernelError, OutOfMemory
from dflash.kernels.gpu import driver

OLDEST = 8, 0
"""Compute capability that the kernels need."""

_CAPTURING = threading.RLock()
"""Held while a graph is captured: another thread that waited for the whole device, as it loads a draft, would end that."""

_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


@cache
def trouble() -> str | None:
    """Say why no GPU can be used, in a few words; None if one can. CuPy is looked at only where there is a driver."""
    if not _has_driver():
        return "there is no NVIDIA driver"
    try:
        import cupy
    except ImportError as error:
        return f"CuPy can't be imported ({error}): pip install 'dflash[cuda13]'"
    runtime = cupy.cuda.runtime
    try:
        if not runtime.getDeviceCount():
            return "there is no NVIDIA GPU"
        capability = cupy.cuda.Device(0).compute_capability
        cupy.zeros(1, np.float32)
    except Exception as error:
        return f"the NVIDIA driver or GPU does not answer ({error})"
    found = int(capability[:-1]), int(capability[-1])
    if found < OLDEST:
        name = runtime.getDeviceProperties(0)["name"].decode()
        return f"{name} has compute capability {found[0]}.{found[1]}, kernels need {OLDEST[0]}.{OLDEST[1]}"
    return None


def _has_driver() -> bool:
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return False
    return True


def description() -> dict[str, Any]:
    """Tell what the GPU is: name, memory in bytes, architecture of the kernels, driver, processors."""
    import cupy

    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(cupy.cuda.Device().id)
    driver = runtime.driverGetVersion()
    return {
        "kind": "cuda",
        "processor": properties["name"].decode(),
        "memory": properties["totalGlobalMem"],
        "architecture": f"sm_{properties['major']}{properties['minor']}",
        "driver": f"{driver // 1000}.{driver % 1000 // 10}",
        "processors": properties["multiProcessorCount"],
    }


@contextmanager
def device_errors(doing: str) -> Iterator[None]:
    """Turn what CUDA raises into dflash's errors.

    Parameters
    ----------
    doing : str
        What was tried, for the message.

    Raises
    ------
    OutOfMemory
        If the device's memory did not do.
    KernelError
        If the device failed otherwise.
    """
    import cupy

    try:
        yield
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise OutOfMemory(f"{doing}: the GPU has {free_memory() >> 20} MiB free, which does not do ({error})") from error
    except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as error:
        raise KernelError(f"{doing}: {error}") from error


def empty(*shape: int, dtype: Any = np.float32) -> Any:
    """Make an array on the device, its values being what lay there."""
    import cupy

    with device_errors(f"{math.prod(shape) * np.dtype(dtype).itemsize >> 20} MiB"):
        return cupy.empty(shape, dtype)


def zeros(*shape: int, dtype: Any = np.float32) -> Any:
    """Make an array of zeros on the device."""
    out = empty(*shape, dtype=dtype)
    out.fill(0)
    return out


def array(values: NDArray[Any]) -> Any:
    """Copy an array to the device."""
    out = empty(*values.shape, dtype=values.dtype)
    out.set(np.ascontiguousarray(values))
    return out


def clone(values: Any) -> Any:
    """A contiguous copy of an array on the device."""
    out = empty(*values.shape, dtype=values.dtype)
    out[...] = values
    return out


def pinned(*shape: int, dtype: Any = np.float32) -> NDArray[Any]:
    """Make a host array that the device can read and write on its own."""
    import cupy

    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    with device_errors(f"{n_bytes >> 20} MiB of pinned memory"):
        memory = cupy.cuda.alloc_pinned_memory(max(n_bytes, 1))
    return np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)


def copy(target: Any, source: Any, stream: Any = None) -> None:
    """Copy between arrays of one size, either of which may be a pinned one, without waiting."""
    import cupy

    runtime = cupy.cuda.runtime
    runtime.memcpyAsync(_address(target), _address(source), source.nbytes, runtime.memcpyDefault, _handle(stream))


def free_memory() -> int:
    """Bytes of the device that could be had now."""
    import cupy

    return cupy.cuda.runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes()


def release() -> None:
    """Hand memory that no array uses back to the device."""
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()


def new_stream() -> Any:
    """Make a stream beside the current one."""
    import cupy

    return cupy.cuda.Stream(non_blocking=True)


def synchronize(stream: Any = None) -> None:
    """Wait until the device has done all that was asked of it, or of one stream.

    Raises
    ------
    KernelError
        If a kernel has failed meanwhile.
    """
    import cupy

    with device_errors("waiting for the GPU"):
        if stream is None:
            with _CAPTURING:
                cupy.cuda.Device().synchronize()
        else:
            stream.synchronize()


def current_stream() -> Any:
    """The stream that launches go to."""
    import cupy

    return cupy.cuda.get_current_stream()


def captured(launch: Callable[[], None], stream: Any) -> Any:
    """Record launches as a graph.

    Parameters
    ----------
    launch : callable
        Launches on the current stream; was run before, so that everything is compiled.
    stream : Stream
        Not the null stream; made current meanwhile.

    Returns
    -------
    Graph
        ``launch(stream)`` runs it.
    """
    import cupy

    with _CAPTURING, device_errors("capturing a graph"), stream:
        # what other threads do meanwhile, such as taking memory for a draft, must not end the capture
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeRelaxed)
        try:
            launch()
        except BaseException:
            with suppress(Exception):
                stream.end_capture()
            raise
        graph = stream.end_capture()
        graph.upload(stream)
    return graph


def launches(graph: Any) -> int:
    """How many kernels and copies a graph is made of."""
    count = ctypes.c_size_t()
    driver.check(driver.library().cuGraphGetNodes(ctypes.c_void_p(graph.graph), None, ctypes.byref(count)), "a graph")
    return count.value


def _address(values: Any) -> int:
    return values.ctypes.data if isinstance(values, np.ndarray) else values.data.ptr


def _handle(stream: Any) -> int:
    import cupy

    return (stream or cupy.cuda.get_current_stream()).ptr
