"""The GPUs of a split: which one is current, copies between them, and the order of their work."""

from collections.abc import Sequence
from typing import Any

from dflash.errors import Unsupported
from dflash.kernels.gpu import device
from dflash.kernels.gpu.lost import watch

_ALREADY_ENABLED = 704  # cudaErrorPeerAccessAlreadyEnabled


class Devices:
    """Several GPUs of one process; the first one runs everything that is not split.

    direct: whether kernels of one GPU write to memory of the others.
    """

    def __init__(self, numbers: Sequence[int], *, direct: bool) -> None:
        import cupy

        self._devices = [cupy.cuda.Device(number) for number in numbers]
        self.numbers = tuple(numbers)
        watch(numbers)
        self._done = []
        for number in numbers:
            with cupy.cuda.Device(number):
                self._done.append(cupy.cuda.Event(disable_timing=True))
        for one in numbers:
            for other in numbers:
                if one != other:
                    _enable(one, other, needed=direct)

    def __len__(self) -> int:
        return len(self._devices)

    def __getitem__(self, i: int) -> Any:
        """Return the context in which the i-th GPU is the current one."""
        return self._devices[i]

    def wait(self, i: int, for_: int) -> None:
        """Let later work of the i-th GPU wait for all launched work of another one."""
        with self[for_]:
            self._done[for_].record(device.current_stream())
        with self[i]:
            device.current_stream().wait_event(self._done[for_])

    def send(self, source: int, target: int, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Copy arrays (from, to) between two GPUs after the work of the first; later work of the second waits for it."""
        import cupy

        runtime = cupy.cuda.runtime
        with self[source]:
            stream = device.current_stream()
            for array, to in pairs:
                places = to.data.ptr, self.numbers[target], array.data.ptr, self.numbers[source]
                runtime.memcpyPeerAsync(*places, array.nbytes, stream.ptr)
        self.wait(target, source)

    def synchronize(self) -> None:
        """Wait until all GPUs have finished all launched work; raise `KernelError` if one has failed."""
        for each in self._devices:
            with each:
                device.synchronize()


def check_number(number: int, argument: str = "device") -> None:
    """Raise `Unsupported` if the process sees no GPU of this number; the message names the `argument` that chose it."""
    import cupy

    n = cupy.cuda.runtime.getDeviceCount()
    if number >= n:
        raise Unsupported(f"{argument} '{device.gpu_name(number)}': {device.seen(n)}")


def number_of(array: Any) -> int:
    """Return the CUDA device number of the GPU that holds an array."""
    return int(array.device.id)


def free_memory_of(number: int) -> int:
    """Return the bytes that can be allocated now on a GPU; raise `Unsupported` if there is no such GPU."""
    import cupy

    check_number(number)
    with cupy.cuda.Device(number):
        return device.free_memory()


def _enable(one: int, other: int, *, needed: bool) -> None:
    import cupy

    runtime = cupy.cuda.runtime
    if runtime.deviceCanAccessPeer(one, other):
        with cupy.cuda.Device(one):
            try:
                runtime.deviceEnablePeerAccess(other)
            except runtime.CUDARuntimeError as error:
                if error.status != _ALREADY_ENABLED:
                    raise
    elif needed:
        raise Unsupported(f"split 'tensor': cuda:{one} has no access to the memory of cuda:{other}; use split='layer'")
