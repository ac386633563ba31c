"""Access to the GPU: detection, memory, copies, streams and graphs. CuPy is imported by the first call."""

import ctypes
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.distribution import install
from dflash.errors import KernelError, OutOfMemory
from dflash.kernels.arrays import GpuArray, Stream
from dflash.kernels.gpu import driver
from dflash.kernels.gpu.capabilities import capabilities, compute_capability
from dflash.kernels.gpu.cubin import compiler
from dflash.kernels.gpu.lost import first_failure

OLDEST = 80
"""Lowest compute capability that the kernels support."""

_CAPTURING = threading.RLock()
"""Held while a graph is captured: another thread that synchronised the device, as loading a draft does, would end it."""

_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


@cache
def trouble(number: int = 0) -> str | None:
    """Return why a GPU can't be used, or None if it can. CuPy is imported only if a driver is installed."""
    if not _has_driver():
        return "there is no NVIDIA driver"
    try:
        import cupy
    except ImportError as error:
        return f"CuPy can't be imported ({error}): {install('cuda13')}"
    runtime = cupy.cuda.runtime
    try:
        n = runtime.getDeviceCount()
        if number >= n:
            return seen(n)
        found = compute_capability(number)
        with on(number or None):
            cupy.zeros(1, np.float32)
    except Exception as error:
        return f"the NVIDIA driver or GPU does not work ({error})"
    if found < OLDEST:
        name = runtime.getDeviceProperties(number)["name"].decode()
        return f"{name} has compute capability {found / 10}, kernels need {OLDEST / 10}"
    return None


def seen(n: int) -> str:
    """Return a sentence about the number of GPUs of the process."""
    if n < 2:
        return f"this process sees one GPU, {gpu_name(0)}" if n else "there is no NVIDIA GPU"
    return f"this process sees {n} GPUs, {gpu_name(0)} to {gpu_name(n - 1)}"


def gpu_name(number: int) -> str:
    """Return the name of the GPU of a CUDA device number."""
    return f"cuda:{number}"


def on(number: int | None) -> AbstractContextManager[Any]:
    """Return a context in which the GPU of a number is the current one; nothing changes for None."""
    if number is None:
        return nullcontext()
    import cupy

    where: AbstractContextManager[Any] = cupy.cuda.Device(number)
    return where


def _has_driver() -> bool:
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return False
    return True


def description() -> dict[str, Any]:
    """Return the GPU's name, memory in bytes, bandwidth in bytes a second, target, compiler, driver and multiprocessors."""
    import cupy

    runtime = cupy.cuda.runtime
    device = cupy.cuda.Device()
    properties, about = runtime.getDeviceProperties(device.id), device.attributes
    version, rules = runtime.driverGetVersion(), capabilities()
    driver = f"{version // 1000}.{version % 1000 // 10}"
    return {
        "kind": "cuda",
        "processor": properties["name"].decode(),
        "memory": properties["totalGlobalMem"],
        "bandwidth": 2 * 1000 * about.get("MemoryClockRate", 0) * about.get("GlobalMemoryBusWidth", 0) // 8,
        "architecture": f"sm_{compute_capability(device.id)}",
        "target": rules.name,
        "compiler": compiler() + (f" and driver {driver}" if rules.code.startswith("compute") else ""),
        "driver": driver,
        "processors": properties["multiProcessorCount"],
    }


def bus_id() -> str:
    """Return the PCI bus id of the current GPU; the driver's management library does not know CUDA's numbers."""
    import cupy

    found: str = cupy.cuda.runtime.deviceGetPCIBusId(cupy.cuda.Device().id)
    return found


@contextmanager
def device_errors(doing: str) -> Iterator[None]:
    """Convert CUDA errors of the ``with`` block into dflash's errors, whose messages name the operation `doing`."""
    import cupy

    try:
        yield
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise OutOfMemory(f"{doing}: the GPU has {free_memory() >> 20} MiB free, which is not enough ({error})") from error
    except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as error:
        raise KernelError(f"{doing}: {error}{first_failure(error.status)}") from error


def empty(*shape: int, dtype: Any = np.float32) -> GpuArray:
    """Allocate an uninitialised array on the device."""
    import cupy

    with device_errors(f"{math.prod(shape) * np.dtype(dtype).itemsize >> 20} MiB"):
        return cupy.empty(shape, dtype)


def zeros(*shape: int, dtype: Any = np.float32) -> GpuArray:
    """Allocate an array of zeros on the device."""
    out = empty(*shape, dtype=dtype)
    out.fill(0)
    return out


def array(values: NDArray[Any]) -> GpuArray:
    """Copy an array to the device."""
    out = empty(*values.shape, dtype=values.dtype)
    out.set(np.ascontiguousarray(values))
    return out


def clone(values: GpuArray) -> GpuArray:
    """Return a contiguous copy of a device array."""
    out = empty(*values.shape, dtype=values.dtype)
    out[...] = values
    return out


def holding(values: GpuArray) -> AbstractContextManager[Any]:
    """Return a context in which the device of an array is the current one; nothing changes for a host array."""
    where = getattr(values, "device", None)
    return nullcontext() if where is None or isinstance(where, str) else where  # NumPy's arrays are on "cpu"


def pinned(*shape: int, dtype: Any = np.float32) -> NDArray[Any]:
    """Allocate a pinned host array, which the device can read and write directly."""
    import cupy

    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    with device_errors(f"{n_bytes >> 20} MiB of pinned memory"):
        memory = cupy.cuda.alloc_pinned_memory(max(n_bytes, 1))
    return np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)


def copy(target: GpuArray, source: GpuArray, stream: Stream = None) -> None:
    """Copy asynchronously between arrays of equal size; either may be a device array or a pinned host array."""
    import cupy

    runtime = cupy.cuda.runtime
    runtime.memcpyAsync(_address(target), _address(source), source.nbytes, runtime.memcpyDefault, _handle(stream))


def free_memory() -> int:
    """Return the bytes of device memory that can be allocated now, including free blocks of CuPy's pool."""
    import cupy

    return cupy.cuda.runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes()


def total_memory() -> int:
    """Return the bytes of device memory, free or not."""
    import cupy

    total: int = cupy.cuda.runtime.memGetInfo()[1]
    return total


def release() -> None:
    """Return unused memory of CuPy's pool to the device."""
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()


def new_stream() -> Stream:
    """Create a stream that runs concurrently with the current one."""
    import cupy

    return cupy.cuda.Stream(non_blocking=True)


def synchronize(stream: Stream = None) -> None:
    """Wait until the device, or one stream of it, has finished all launched work."""
    import cupy

    with device_errors("waiting for the GPU"):
        if stream is None:
            with _CAPTURING:
                cupy.cuda.Device().synchronize()
        else:
            stream.synchronize()


def current_stream() -> Stream:
    """Return the stream that launches go to by default."""
    import cupy

    return cupy.cuda.get_current_stream()


def captured(launch: Callable[[], None], stream: Stream) -> Any:
    """Capture launches as a graph.

    launch: launches kernels on the current stream. It must have run once before, so that all kernels are compiled.
    """
    import cupy

    with _CAPTURING, device_errors("capturing a graph"), stream:
        # calls of other threads, such as allocating memory for a draft, must not end the capture
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
    """Return the number of nodes of a graph: kernels and copies."""
    count = ctypes.c_size_t()
    driver.check(driver.library().cuGraphGetNodes(ctypes.c_void_p(graph.graph), None, ctypes.byref(count)), "a graph")
    return count.value


def _address(values: GpuArray) -> int:
    return values.ctypes.data if isinstance(values, np.ndarray) else values.data.ptr


def _handle(stream: Stream) -> int:
    import cupy

    return (stream or cupy.cuda.get_current_stream()).ptr
