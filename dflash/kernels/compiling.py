"""Count kernels that are compiled and that wait to be, for progress lines; safe to call from any thread."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Self


class Count(NamedTuple):
    """Kernels of this process so far, and their sizes, which are about proportional to the time they take."""

    done: int = 0
    """Kernels that were compiled."""

    waiting: int = 0
    """Kernels that are known to be missing and are not compiled yet, those in work included."""

    done_size: float = 0.0
    waiting_size: float = 0.0


_lock = threading.Lock()
_count = Count()


def count() -> Count:
    """Return the number of kernels so far."""
    return _count


def add(*, done: int = 0, waiting: int = 0, size: float = 1.0) -> None:
    """Change the numbers by `done` and `waiting` kernels of a size."""
    global _count  # noqa: PLW0603 - one count for all compilers of the process
    with _lock:
        a = _count
        _count = Count(a.done + done, a.waiting + waiting, a.done_size + done * size, a.waiting_size + waiting * size)


@contextmanager
def compiling() -> Iterator[None]:
    """Count a kernel that is compiled inside a ``with`` block."""
    add(waiting=1)
    try:
        yield
        add(done=1)
    finally:
        add(waiting=-1)


class Progress:
    """Counts kernels that other processes compile, inside a ``with`` block."""

    def __init__(self) -> None:
        self._waiting, self._named, self._finished = dict[int, float](), set[int](), set[int]()
        self._lock = threading.Lock()

    @property
    def is_done(self) -> bool:
        """True if kernels were named, and all of them are finished."""
        return bool(self._named) and not self._waiting

    def expect(self, sizes: Sequence[float], first: int = 0) -> None:
        """Add the sizes of kernels, with numbers from `first` on; each process names the same ones."""
        with self._lock:
            if first not in self._named:
                mean = sum(sizes) / max(len(sizes), 1)
                self._named.update(range(first, first + len(sizes)))
                for number, size in enumerate(sizes, first):
                    if number not in self._finished:
                        self._waiting[number] = size / mean
                        add(waiting=1, size=size / mean)

    def finish(self, number: int, compiled: int) -> None:
        """Count a kernel, which may not have been named, as compiled or, if `compiled` is 0, as found in the cache."""
        with self._lock:
            self._finished.add(number)
            size = self._waiting.pop(number, None)
        add(done=min(compiled, 1), waiting=-(size is not None), size=size or 1.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for size in self._waiting.values():
            add(waiting=-1, size=size)
        self._waiting = {}
