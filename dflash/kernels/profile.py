"""How long each op takes, when somebody asks."""

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
    """Count the time of a function under `name` while a `profile` is running."""

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


@contextmanager
def profile() -> Iterator[dict[str, float]]:
    """Sum up seconds by op, over all threads, until the block ends; profiles don't nest."""
    global _seconds  # noqa: PLW0603
    _seconds = defaultdict(float)
    try:
        yield _seconds
    finally:
        _seconds = None
