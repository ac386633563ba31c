"""How long a step takes, on this very device."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import suppress
from time import perf_counter
from typing import Any

import numpy as np

from dflash.errors import PoolExhausted
from dflash.kernels.ragged import PENDING
from dflash.model.batch import Span

_ROWS = (1, 2, 4, 5, 8, 9, 16, 17, 32, 64)
_REPEATS = 2
_MEMORY = 0.9
_OFF = 1.5
"""What is off by more than this factor is taken for a hiccup of the machine."""


class Forwards:
    """Seconds of a forward, by its rows: measured once, then followed.

    Parameters
    ----------
    model : Model
        Is run for a moment, unless its memory is all in use.
    capture : tuple of int
        Layers whose outputs are wanted of its forwards.
    """

    def __init__(self, model: Any, capture: tuple[int, ...] = ()) -> None:
        self._rows = [n for n in _ROWS if n <= min(model.rows, PENDING)]
        self._seconds = [1e-3 * (1 + n / 16) for n in self._rows]
        with suppress(PoolExhausted):
            self._seconds = _measured(model, self._rows, capture)

    def seconds(self, rows: float) -> float:
        """Of a forward with so many rows; beyond the last measure in proportion."""
        grid, known = self._rows, self._seconds
        if rows >= grid[-1]:
            return known[-1] * rows / grid[-1]
        at = max(bisect_right(grid, rows), 1)
        share = (rows - grid[at - 1]) / (grid[at] - grid[at - 1])
        return known[at - 1] + share * (known[at] - known[at - 1])

    def learn(self, rows: int, seconds: float) -> None:
        """A forward with so many rows took so long."""
        expected = self.seconds(rows)
        seconds = min(max(seconds, expected / _OFF), expected * _OFF)
        at = min(max(bisect_left(self._rows, rows), 1), len(self._rows) - 1)
        share = min(max((rows - self._rows[at - 1]) / (self._rows[at] - self._rows[at - 1]), 0.0), 1.0)
        change = seconds / expected - 1
        # the whole curve follows slowly, as texts grow and other work comes and goes; the nearest points fast
        self._seconds = [known * (1 + 0.02 * change) for known in self._seconds]
        self._seconds[at] *= 1 + 0.2 * share * change
        self._seconds[at - 1] *= 1 + 0.2 * (1 - share) * change


class Extra:
    """Seconds that a step with guesses takes beside its forward, ``a + b n`` for n guesses, as it was lately."""

    def __init__(self) -> None:
        # sums of 1, n and n squared, and of seconds and n times seconds; older ones count less
        self._ones, self._first, self._second, self._sum, self._product = 1e-3, 0.0, 1e-2, 0.0, 0.0
        self._a = self._b = 0.0
        self._n = 0

    def seconds(self, n: float) -> float:
        """With `n` guesses."""
        return max(self._a + self._b * n, 0.0)

    def learn(self, n: int, seconds: float) -> None:
        """A step with `n` guesses took so much longer than its forward."""
        if self._n > 3:
            seconds = min(seconds, _OFF * max(self._a + self._b * n, 0.0) + 1e-3)
        self._n += 1
        # the weak belief that nothing is to be paid decides where only one n was tried
        self._ones = _MEMORY * self._ones + 1 + 1e-4
        self._first = _MEMORY * self._first + n
        self._second = _MEMORY * self._second + n * n + 1e-3
        self._sum = _MEMORY * self._sum + seconds
        self._product = _MEMORY * self._product + n * seconds
        determinant = self._ones * self._second - self._first**2
        self._a = (self._second * self._sum - self._first * self._product) / determinant
        self._b = (self._ones * self._product - self._first * self._sum) / determinant


def _measured(model: Any, rows: list[int], capture: tuple[int, ...]) -> list[float]:
    """The shortest of a few forwards each."""
    state = model.state()
    found = []
    try:
        state.reserve(rows[-1])
        for n in rows:
            span = Span(state, np.zeros(n, np.int32), np.arange(-1, n - 1, dtype=np.int32))
            times = []
            for _ in range(_REPEATS):
                began = perf_counter()
                model.forward([span], capture=capture)
                model.finish()
                times.append(perf_counter() - began)
                state.commit([])
            found.append(min(times))
    finally:
        state.close()
    return found
