"""Latencies of forwards and drafts on this device."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from dflash.decode.step import Step

_MAX_DEVIATION = 1.5
"""Largest factor between a measured and an expected latency; more is taken for a disturbance and clipped."""


class ForwardLatency:
    """Seconds of a forward by its rows: measured once, then updated with each step.

    Parameters
    ----------
    rows : sequence of int
        Numbers of rows that were measured, ascending, at least 2.
    seconds : sequence of float
        Seconds of a forward with each.

    Attributes
    ----------
    scale : float
        Present latency relative to the measured one.
    """

    def __init__(self, rows: Sequence[int], seconds: Sequence[float]) -> None:
        self._rows, self._seconds = list(rows), list(seconds)
        self.scale = 1.0

    def seconds(self, rows: float) -> float:
        """Return the seconds of a forward with `rows` rows, proportional to the rows beyond the largest measured number."""
        grid, known = self._rows, self._seconds
        if rows >= grid[-1]:
            return self.scale * known[-1] * rows / grid[-1]
        at = bisect_right(grid, rows) or 1
        share = (rows - grid[at - 1]) / (grid[at] - grid[at - 1])
        return self.scale * (known[at - 1] + share * (known[at] - known[at - 1]))

    def learn(self, rows: int, seconds: float) -> None:
        """Update the latencies with one forward."""
        expected = self.seconds(rows)
        seconds = min(max(seconds, expected / _MAX_DEVIATION), expected * _MAX_DEVIATION)
        at = min(max(bisect_left(self._rows, rows), 1), len(self._rows) - 1)
        share = min(max((rows - self._rows[at - 1]) / (self._rows[at] - self._rows[at - 1]), 0.0), 1.0)
        change = seconds / expected - 1
        # other work on the machine slows all sizes alike; a smaller share belongs to this size
        self.scale *= 1 + 0.2 * change
        self._seconds[at] *= 1 + 0.05 * share * change
        self._seconds[at - 1] *= 1 + 0.05 * (1 - share) * change


class DraftLatency:
    """Seconds of steps, or of their part beside the forward, by draft size: measured once, then scaled with each step.

    Parameters
    ----------
    known : sequence of (int, float)
        Draft sizes, ascending, and seconds with them. Other sizes are interpolated and extrapolated linearly; sizes below
        the smallest take as long as that. If empty, the first step that is learned sets the seconds of all sizes.
    """

    def __init__(self, known: Sequence[tuple[int, float]] = ()) -> None:
        self._known, self._scale, self._n_steps = list(known), 1.0, 0

    @property
    def is_known(self) -> bool:
        """True if any size was measured or learned."""
        return bool(self._known)

    def seconds(self, n: float) -> float:
        """Return the seconds with `n` draft tokens."""
        known = self._known
        if len(known) < 2:
            return self._scale * known[0][1] if known else 0.0
        n = max(n, known[0][0])
        at = min(max(bisect_left(known, (n,)), 1), len(known) - 1)
        (left, low), (right, high) = known[at - 1 : at + 1]
        return max(self._scale * (low + (n - left) * (high - low) / (right - left)), 0.0)

    def learn(self, n: int, seconds: float) -> None:
        """Update the latencies with one step. The first steps count most: other work may have disturbed the measurement."""
        self._n_steps += 1
        expected = self.seconds(n)
        if expected > 0:
            share = max(0.1, 1 / (1 + self._n_steps))
            self._scale *= 1 + share * (min(max(seconds / expected, 1 / _MAX_DEVIATION), _MAX_DEVIATION) - 1)
        elif not self._known:
            self._known = [(n, seconds)]


def step_seconds(step: Step) -> float:
    """Return the seconds of a step of a batch of one."""
    return step.propose + step.forward + step.verify + step.commit
