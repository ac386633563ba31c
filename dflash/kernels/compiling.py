"""Count kernels that are compiled and that wait to be, for progress lines; safe to call from any thread."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Count(NamedTuple):
    """Kernels of this process so far."""

    done: int
    """Kernels that were compiled."""

    waiting: int
    """Kernels that are known to be missing and are not compiled yet, those in work included."""


_lock = threading.Lock()
_count = Count(0, 0)


def count() -> Count:
    """Return the number of kernels so far."""
    return _count


def add(*, done: int = 0, waiting: int = 0) -> None:
    """Change the numbers by `done` and `waiting`."""
    global _count  # noqa: PLW0603 - one count for all compilers of the process
    with _lock:
        _count = Count(_count.done + done, _count.waiting + waiting)


@contextmanager
def compiling() -> Iterator[None]:
    """Count a kernel that is compiled inside a ``with`` block."""
    add(waiting=1)
    try:
        yield
        add(done=1)
    finally:
        add(waiting=-1)
