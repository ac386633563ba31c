"""Measure the time spent in each op while a profile is running."""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_seconds: dict[str, float] | None = None


def timed(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that a running `profile` adds its time under `name`."""

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            if _seconds is None:
                return function(*args, **kwargs)
            start = perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                _seconds[name] += perf_counter() - start

        return run

    return wrap


def profiling() -> bool:
    """Return whether a profile is running."""
    return _seconds is not None


@contextmanager
def profile() -> Iterator[dict[str, float]]:
    """Sum the seconds spent in each op, over all threads, until the ``with`` block ends; profiles do not nest."""
    global _seconds  # noqa: PLW0603
    _seconds = defaultdict(float)
    try:
        yield _seconds
    finally:
        _seconds = None
