"""Small int32 device arrays that are uploaded or downloaded together by one launch."""

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from dflash.kernels.arrays import GpuArray, Stream
from dflash.kernels.copy.cuda_transfer import Transfer
from dflash.kernels.gpu.device import device_errors, pinned

_LINE = 32  # int32 in a cache line of the GPU, 128 bytes


class DeviceArrays:
    """Arrays of int32 at fixed addresses, so that a captured graph reads their values of each replay.

    in_flight: pinned buffers: copies that may be in flight; one more waits for the first of them.
    **shapes: name and shape of each array. They become attributes: CuPy arrays of zeros, each aligned to a cache line.
    """

    def __init__(self, in_flight: int = 4, /, **shapes: tuple[int, ...]) -> None:
        import cupy

        total = sum(padded(shape) for shape in shapes.values())
        self._device = cupy.zeros(total, np.int32)
        for name, part in parts_of(self._device, shapes).items():
            setattr(self, name, part)
        self._ring: list[Any] = []
        self._downloads: list[Download | None] = [None] * in_flight
        for _ in range(in_flight):
            host = pinned(total, dtype=np.int32)
            host[:] = 0
            views = SimpleNamespace(**parts_of(host, shapes))
            self._ring.append((views, host, cupy.cuda.Event(disable_timing=True)))
        self._next, self._transfer = 0, Transfer()

    @property
    def words(self) -> GpuArray:
        """All arrays as one array of int32."""
        return self._device

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @property
    def host(self) -> SimpleNamespace:
        """Host arrays to fill for the next `upload`, by the same names; they hold values of an earlier upload."""
        return self._free()[0]

    def upload(
        self, stream: Stream = None, n_words: int | None = None, *, taken: tuple[GpuArray, GpuArray] | None = None
    ) -> None:
        """Copy `host`, or only its first `n_words` words, to the device, asynchronously.

        taken: one of the arrays, and a device array whose values its first elements get in place of those of `host`.
        """
        import cupy

        _, host, done = self._ring[self._next]
        self._next = (self._next + 1) % len(self._ring)
        stream = stream or cupy.cuda.get_current_stream()
        here, n_words = self._device.data.ptr, host.size if n_words is None else n_words
        words = (0, 0, 0) if taken is None else (taken[1].data.ptr, (taken[0].data.ptr - here) // 4, taken[1].size)
        self._transfer(here, host.ctypes.data, n_words, stream, from_host=True, taken=words)
        done.record(stream)

    def download(self, stream: Stream = None) -> "Download":
        """Start to copy all arrays to the host."""
        import cupy

        views, host, done = self._free()
        download = self._downloads[self._next] = Download(views, done)
        self._next = (self._next + 1) % len(self._ring)
        stream = stream or cupy.cuda.get_current_stream()
        self._transfer(host.ctypes.data, self._device.data.ptr, host.size, stream)
        done.record(stream)
        return download

    def _free(self) -> tuple[SimpleNamespace, Any, Any]:
        """Return the next pinned buffer, once its previous copy is done and its download has its own memory."""
        download, self._downloads[self._next] = self._downloads[self._next], None
        if download is not None:
            download.keep()
        self._ring[self._next][2].synchronize()
        return self._ring[self._next]


class Download:
    """An asynchronous copy from the device to the host."""

    def __init__(self, views: SimpleNamespace, done: Any) -> None:
        self._views, self._done, self._is_there = views, done, False

    def wait(self) -> SimpleNamespace:
        """Wait for the copy and return its arrays, which later copies overwrite unless `keep` is called."""
        if not self._is_there:
            with device_errors("waiting for a draft"):
                self._done.synchronize()
            self._is_there = True
        return self._views

    def keep(self) -> None:
        """Wait for the copy and move its arrays to memory of their own."""
        self._views = SimpleNamespace(**{name: array.copy() for name, array in vars(self.wait()).items()})


def padded(shape: tuple[int, ...]) -> int:
    """Return the size of an array, rounded up to whole cache lines."""
    return -(-math.prod(shape) // _LINE) * _LINE


def parts_of(whole: GpuArray, shapes: dict[str, tuple[int, ...]]) -> dict[str, GpuArray]:
    """Return views of one array by name, each aligned to a cache line."""
    parts, at = {}, 0
    for name, shape in shapes.items():
        parts[name] = whole[at : at + math.prod(shape)].reshape(shape)
        at += padded(shape)
    return parts
