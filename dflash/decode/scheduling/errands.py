"""Short pieces of work that use the model beside the sessions: the engine runs one before each step."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from dflash.errors import Cancelled


class Errands:
    """A queue that any thread may add to, and that the engine's thread works off, one piece a step.

    However much is in the queue, the sessions wait for one piece at a time.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, function: Callable[[], Any]) -> Future[Any]:
        """Let the engine run something before one of its next steps; the future has what it returns or raises.

        Raises
        ------
        Cancelled
            If the engine is closed.
        """
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise Cancelled("the engine is shutting down")
            self._waiting.append((function, future))
        return future

    def run_one(self) -> None:
        """Run what has waited longest, if anything waits; what it raises is in its future alone."""
        if self._waiting:
            _run(*self._waiting.popleft())

    def close(self) -> None:
        """Run nothing more; what waits ends with `Cancelled`. Harmless if done before."""
        with self._lock:
            self._closed = True
        while self._waiting:
            self._waiting.popleft()[1].set_exception(Cancelled("the engine is shutting down"))


def _run(function: Callable[[], Any], future: "Future[Any]") -> None:
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
        del future  # holds the error, whose frames hold this one
