"""Small arrays on the device that the host fills together, by one copy that nobody waits for."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from dflash.kernels.gpu.device import device_errors

_RING = 4
_LINE = 32  # numbers in a cache line


class DeviceArrays:
    """Arrays of int32 at addresses that never change, so that a captured graph can read what they will hold.

    Parameters
    ----------
    **shapes : tuple of int
        Name and shape of each; they become attributes, CuPy arrays of zeros, which begin at a cache line each.
    """

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        import cupy

        total = sum(padded(shape) for shape in shapes.values())
        self._device = cupy.zeros(total, np.int32)
        for name, part in parts_of(self._device, shapes).items():
            setattr(self, name, part)
        self._ring: list[Any] = []
        self._lent: list[Download | None] = [None] * _RING
        for _ in range(_RING):
            memory = cupy.cuda.alloc_pinned_memory(4 * total)
            host = np.frombuffer(memory, np.int32, total)
            host[:] = 0
            views = SimpleNamespace(**parts_of(host, shapes))
            self._ring.append((views, host, cupy.cuda.Event(disable_timing=True)))
        self._next = 0

    @property
    def host(self) -> SimpleNamespace:
        """Arrays to be filled for the next `upload`, by the same names; they hold what an earlier one sent."""
        return self._free()[0]

    def upload(self, stream: Any = None) -> None:
        """Send what `host` holds, all of it."""
        import cupy

        _, host, done = self._ring[self._next]
        self._next = (self._next + 1) % _RING
        stream = stream or cupy.cuda.get_current_stream()
        runtime = cupy.cuda.runtime
        runtime.memcpyAsync(self._device.data.ptr, host.ctypes.data, host.nbytes, runtime.memcpyHostToDevice, stream.ptr)
        done.record(stream)

    def download(self, stream: Any = None) -> "Download":
        """Begin to copy everything back."""
        import cupy

        views, host, done = self._free()
        download = self._lent[self._next] = Download(views, done)
        self._next = (self._next + 1) % _RING
        stream = stream or cupy.cuda.get_current_stream()
        runtime = cupy.cuda.runtime
        runtime.memcpyAsync(host.ctypes.data, self._device.data.ptr, host.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
        done.record(stream)
        return download

    def _free(self) -> tuple[SimpleNamespace, Any, Any]:
        """The memory that is next, once nobody needs what it holds."""
        lent, self._lent[self._next] = self._lent[self._next], None
        if lent is not None:
            lent.keep()
        self._ring[self._next][2].synchronize()
        return self._ring[self._next]


class Download:
    """What is being copied back."""

    def __init__(self, views: SimpleNamespace, done: Any) -> None:
        self._views, self._done, self._is_there = views, done, False

    def wait(self) -> SimpleNamespace:
        """The arrays, once they are there; they last until a few more copies are begun, unless they are kept."""
        if not self._is_there:
            with device_errors("waiting for a draft"):
                self._done.synchronize()
            self._is_there = True
        return self._views

    def keep(self) -> None:
        """Wait, and move them to memory of their own."""
        self._views = SimpleNamespace(**{name: array.copy() for name, array in vars(self.wait()).items()})


def padded(shape: tuple[int, ...]) -> int:
    """Numbers that an array takes with what fills up its last cache line."""
    return -(-math.prod(shape) // _LINE) * _LINE


def parts_of(whole: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Views of one array, each from a cache line on."""
    parts, at = {}, 0
    for name, shape in shapes.items():
        parts[name] = whole[at : at + math.prod(shape)].reshape(shape)
        at += padded(shape)
    return parts
