"""The way of weights to the device: pinned buffers that some threads fill while others are on the bus."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.gpu import device

BUFFER_BYTES = 64 << 20
BUFFERS = 3

_PIECE = 4 << 20

Bytes = NDArray[np.uint8]
Use = Callable[[Any, Any], None]


class _Buffer(NamedTuple):
    host: Bytes
    raw: Any
    stream: Any


class Staging:
    """Sends bytes to the device part by part; reading, copying and what is done with them there go on at the same time.

    Parameters
    ----------
    threads : int
        That read; from a file in memory one of them manages a few GB a second.
    buffer_bytes : int
        Of each of `BUFFERS` pinned buffers and as many on the device; most bytes of a part.

    Notes
    -----
    To be used in a ``with``; its end waits for everything and gives the buffers back.
    """

    def __init__(self, threads: int, buffer_bytes: int = BUFFER_BYTES) -> None:
        self.room = buffer_bytes
        self._buffers = [
            _Buffer(
                device.pinned(buffer_bytes, dtype=np.uint8),
                device.empty(buffer_bytes, dtype=np.uint8),
                device.new_stream(),
            )
            for _ in range(BUFFERS)
        ]
        self._next = 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="dflash-read")

    def send(self, part: Bytes, use: Use) -> None:
        """Copy a part to the device and have it used there.

        Parameters
        ----------
        part : uint8, C-contiguous
            At most `room` bytes.
        use : callable
            ``use(raw, stream)`` launches what reads the device array `raw` of the shape of `part`, after all that was
            launched on the current stream; on return of `send` it may not have run yet.
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
        while self._buffers:  # none is left in a variable, which would hold its memory
            self._buffers.pop().stream.synchronize()
        device.release()
