"""Copies to the host beside the stream of launches, so that what is launched next need not wait for them."""

from typing import Any


class Aside:
    """A stream that goes on from where another one stands.

    What is copied there must not be written again before the copy is done: `hold` lets a stream wait for that.
    """

    def __init__(self) -> None:
        import cupy

        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._begin = cupy.cuda.Event(disable_timing=True)
        self._end = cupy.cuda.Event(disable_timing=True)
        self._holds = False

    def after(self, stream: Any) -> Any:
        """The stream beside, which first waits for all that was launched on `stream`."""
        self._begin.record(stream)
        self._stream.wait_event(self._begin)
        return self._stream

    def done(self) -> None:
        """Say that all copies are begun that somebody may have to be held for."""
        self._end.record(self._stream)
        self._holds = True

    def hold(self, stream: Any) -> None:
        """Let a stream wait for them."""
        if self._holds:
            stream.wait_event(self._end)
            self._holds = False
