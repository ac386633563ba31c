"""How long a step takes, on this very device."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from dflash.decode.step import Step

_OFF = 1.5
"""What is off by more than this factor is taken for a hiccup of the machine."""


class ForwardLatency:
    """Seconds of a forward, by its rows: measured once, then followed.

    Parameters
    ----------
    rows : sequence of int
        Numbers of rows that were measured, ascending, at least 2.
    seconds : sequence of float
        Of a forward with each.

    Attributes
    ----------
    scale : float
        How much longer all of them take than when they were measured.
    """

    def __init__(self, rows: Sequence[int], seconds: Sequence[float]) -> None:
        self._rows, self._seconds = list(rows), list(seconds)
        self.scale = 1.0

    def seconds(self, rows: float) -> float:
        """Of a forward with so many rows; beyond the last measure in proportion."""
        grid, known = self._rows, self._seconds
        if rows >= grid[-1]:
            return self.scale * known[-1] * rows / grid[-1]
        at = bisect_right(grid, rows) or 1
        share = (rows - grid[at - 1]) / (grid[at] - grid[at - 1])
        return self.scale * (known[at - 1] + share * (known[at] - known[at - 1]))

    def learn(self, rows: int, seconds: float) -> None:
        """A forward with so many rows took so long."""
        expected = self.seconds(rows)
        seconds = min(max(seconds, expected / _OFF), expected * _OFF)
        at = min(max(bisect_left(self._rows, rows), 1), len(self._rows) - 1)
        share = min(max((rows - self._rows[at - 1]) / (self._rows[at] - self._rows[at - 1]), 0.0), 1.0)
        change = seconds / expected - 1
        # other work slows down all alike; the rest is this point's own
        self.scale *= 1 + 0.2 * change
        self._seconds[at] *= 1 + 0.05 * share * change
        self._seconds[at - 1] *= 1 + 0.05 * (1 - share) * change


class DraftLatency:
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
