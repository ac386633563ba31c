"""How long a step takes, on this very device."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import closing, suppress
from itertools import accumulate
from math import inf
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from dflash.decode.engine import Engine
from dflash.decode.session import Session
from dflash.decode.step import Step
from dflash.decode.strategy import Strategy
from dflash.errors import PoolExhausted
from dflash.kernels.ragged import PENDING
from dflash.model.batch import Span

_ROWS = (1, 2, 4, 5, 8, 9, 16, 17, 32, 64)
_REPEATS = 3
_STEPS = 5
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

    Attributes
    ----------
    slowness : float
        How much longer all of them take than when they were measured.
    """

    def __init__(self, model: Any, capture: tuple[int, ...] = ()) -> None:
        self._rows = [n for n in _ROWS if n <= min(model.rows, PENDING)]
        self._seconds = [1e-3 * (1 + n / 16) for n in self._rows]
        self.slowness = 1.0
        with suppress(PoolExhausted):
            self._seconds = _measured(model, self._rows, capture)

    def seconds(self, rows: float) -> float:
        """Of a forward with so many rows; beyond the last measure in proportion."""
        grid, known = self._rows, self._seconds
        if rows >= grid[-1]:
            return self.slowness * known[-1] * rows / grid[-1]
        at = bisect_right(grid, rows) or 1
        share = (rows - grid[at - 1]) / (grid[at] - grid[at - 1])
        return self.slowness * (known[at - 1] + share * (known[at] - known[at - 1]))

    def learn(self, rows: int, seconds: float) -> None:
        """A forward with so many rows took so long."""
        expected = self.seconds(rows)
        seconds = min(max(seconds, expected / _OFF), expected * _OFF)
        at = min(max(bisect_left(self._rows, rows), 1), len(self._rows) - 1)
        share = min(max((rows - self._rows[at - 1]) / (self._rows[at] - self._rows[at - 1]), 0.0), 1.0)
        change = seconds / expected - 1
        # other work slows down all alike; the rest is this point's own
        self.slowness *= 1 + 0.2 * change
        self._seconds[at] *= 1 + 0.05 * share * change
        self._seconds[at - 1] *= 1 + 0.05 * (1 - share) * change


class Extra:
    """Seconds of steps, or of what is beside their forwards, by their guesses: measured once, then followed as a whole.

    Parameters
    ----------
    known : sequence of (int, float)
        Some numbers of guesses, ascending, and the seconds with them, between and beyond which it goes in straight lines;
        less than the fewest take as long. If there are none, the first step that is heard of is taken for all.
    """

    def __init__(self, known: Sequence[tuple[int, float]] = ()) -> None:
        self._known, self._scale, self._heard = list(known), 1.0, 0

    @property
    def is_known(self) -> bool:
        """Whether any step was heard of."""
        return bool(self._known)

    def seconds(self, n: float) -> float:
        """With `n` guesses."""
        known = self._known
        if len(known) < 2:
            return self._scale * known[0][1] if known else 0.0
        n = max(n, known[0][0])
        at = min(max(bisect_left(known, (n,)), 1), len(known) - 1)
        (left, low), (right, high) = known[at - 1 : at + 1]
        return max(self._scale * (low + (n - left) * (high - low) / (right - left)), 0.0)

    def learn(self, n: int, seconds: float) -> None:
        """A step with `n` guesses took so long; the first ones count most, other work may have met what was measured."""
        self._heard += 1
        expected = self.seconds(n)
        if expected > 0:
            share = max(0.1, 1 / (1 + self._heard))
            self._scale *= 1 + share * (min(max(seconds / expected, 1 / _OFF), _OFF) - 1)
        elif not self._known:
            self._known = [(n, seconds)]


def whole(step: Step) -> float:
    """Seconds of a step of one text."""
    return step.propose + step.forward + step.verify + step.commit


def measured_steps(model: Any, strategy: Strategy) -> list[Step]:
    """Some steps of a text of no meaning; none if there is no memory for it."""
    session = Session([0, 0], strategy=strategy, max_tokens=min(_STEPS * (PENDING + 1), model.config.context - 2))
    found = []
    with closing(Engine(model).run([session])) as events:
        for event in events:
            if event.step.tokens:
                found.append(event.step)
            if len(found) == _STEPS:
                break
    return found


def measured_extra(model: Any, strategies: Sequence[Strategy], forwards: Forwards) -> Extra:
    """Let a drafter guess for a moment, in shapes from small to large: on a CPU, what that takes beside the forward."""
    known = {}
    for strategy in strategies:
        steps = measured_steps(model, strategy)
        n = max((step.drafted for step in steps), default=0)
        full = [step for step in steps if step.drafted == n]
        if n and model.device == "cpu":
            # held against their own forwards, which other work on the machine slows down as much
            known[n] = forwards.seconds(1 + n) * median((whole(step) - step.forward) / step.forward for step in full)
        elif n:
            known[n] = min(map(whole, full))
    # more guesses can't take less time: where they seem to, a part of a step was not seen
    sizes = sorted(known)
    return Extra(list(zip(sizes, accumulate((known[n] for n in sizes), max), strict=True)))


def _measured(model: Any, rows: list[int], capture: tuple[int, ...]) -> list[float]:
    """The shortest of a few forwards each, in turns, so that other work on the machine meets all alike."""
    state = model.state()
    times = [inf] * len(rows)
    try:
        state.reserve(rows[-1])
        for _ in range(_REPEATS):
            for i, n in enumerate(rows):
                span = Span(state, np.zeros(n, np.int32), np.arange(-1, n - 1, dtype=np.int32))
                began = perf_counter()
                model.forward([span], capture=capture)
                model.finish()
                times[i] = min(times[i], perf_counter() - began)
                state.commit([])
    finally:
        state.close()
    # none takes longer than one of more rows, or than so many of fewer rows: where it seems to, something came in between
    return [min(-(-n // m) * seconds for m, seconds in zip(rows, times, strict=True)) for n in rows]
