"""Upload of weights to the device through pinned buffers: reading the file overlaps with copying."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.gpu import device

BUFFER_BYTES = 64 << 20
BUFFERS = 3  # in rotation, so that one is filled while others are copied and used

_PIECE = 4 << 20  # bytes that a thread reads at a time

Bytes = NDArray[np.uint8]
Use = Callable[[Any, Any], None]


class _Buffer(NamedTuple):
    host: Bytes
    raw: Any
    stream: Any


class Staging:
    """Sends bytes to the device in parts; reading, copying and the use on the device overlap.

    threads: number of threads that read. One thread reads a few GB a second from a file in the page cache.
    buffer_bytes: size of each of the `BUFFERS` pinned buffers and of their counterparts on the device; largest size of a
        part.

    Use it in a ``with`` statement, whose end waits for all work and frees the buffers.
    """

    def __init__(self, threads: int, buffer_bytes: int = BUFFER_BYTES) -> None:
        self.room = buffer_bytes
        self._buffers = [
            _Buffer(
                device.pinned(buffer_bytes, dtype=np.uint8), device.empty(buffer_bytes, dtype=np.uint8), device.new_stream()
            )
            for _ in range(BUFFERS)
        ]
        self._next = 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="dflash-read")

    def send(self, part: Bytes, use: Use) -> None:
        """Copy a part to the device, then launch the work that reads it.

        part: bytes of the part, at most `room`.
        use: ``use(raw, stream)`` launches work on `stream` that reads `raw`, a device array of the shape of `part`. The work
            runs after all earlier launches of the current stream, possibly after `send` returns.
        """
        buffer = self._buffers[self._next]
        self._next = (self._next + 1) % BUFFERS
        buffer.stream.synchronize()
        flat = part.reshape(-1)
        pieces = [slice(at, min(at + _PIECE, flat.size)) for at in range(0, flat.size, _PIECE)]
        if len(pieces) == 1:
            buffer.host[: flat.size] = flat
        else:
            list(self._pool.map(lambda piece: np.copyto(buffer.host[piece], flat[piece]), pieces))
        raw = buffer.raw[: flat.size]
        buffer.stream.wait_event(device.current_stream().record())
        device.copy(raw, buffer.host[: flat.size], buffer.stream)
        with buffer.stream:
            use(raw.reshape(part.shape), buffer.stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown()
        while self._buffers:  # a variable that still refers to a buffer would keep its memory allocated
            self._buffers.pop().stream.synchronize()
        device.release()
