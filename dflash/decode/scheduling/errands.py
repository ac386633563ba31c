"""Short pieces of other work that uses the model. The engine runs one before each step."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from dflash.errors import Cancelled

T = TypeVar("T")


class Errands:
    """A queue that any thread may add to. The engine's thread runs one piece before each step.

    However long the queue is, sessions wait for one piece at a time.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, function: Callable[[], T]) -> Future[T]:
        """Queue a function. The future receives its result or its exception. Raises Cancelled if the engine is closed."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise Cancelled("the engine is shutting down")
            self._waiting.append((function, future))
        return future

    def run_one(self) -> None:
        """Run the oldest piece, if there is any. Its exception is passed to its future only."""
        if self._waiting:
            _run(*self._waiting.popleft())

    def close(self) -> None:
        """Reject further work and end queued futures with `Cancelled`. Harmless if done before."""
        with self._lock:
            self._closed = True
        while self._waiting:
            self._waiting.popleft()[1].set_exception(Cancelled("the engine is shutting down"))


def _run(function: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
        del future  # holds the error, whose frames hold this one
