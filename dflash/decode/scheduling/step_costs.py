"""Seconds of steps that decode, by their rows and drafts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from dflash.model.attachments import Recent

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_BUCKETS = np.array([1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128])
"""Rows that a GPU rounds up to, and that fill a tile of a CPU's kernels; beyond them multiples of 64, the rows of a pass."""

_NOISE = 0.1
"""Standard deviation of a step's time, relative to it."""

_DRIFT = 0.01
"""Growth of an estimate's standard deviation with each step without a measurement, relative to the step."""

_MOST_DRIFT = 0.3
"""Largest standard deviation that an estimate reaches in this way: contexts grow, other work comes and goes."""

_OUTLIER = 3.0
"""Standard deviations beyond which a difference counts no more: a graph was captured, or other work took the processor."""


_NEW_DRAFT = 0.2
"""Standard deviation of a drafter's unknown seconds, relative to a forward's; that of an unknown forward is 1."""

_N_NEW = 3
"""Steps with a new part of which the fastest counts."""

_MOST_NEW = 64
"""New combinations of parts that are remembered."""

_PASS = 64
"""Rows of a decode pass of a GPU with drafts."""

_MANY = 8
"""Sequences from which on passes of a GPU with one row for each cost less than others of as many rows, and may be larger."""

_CAUTION = 0.3
"""Growth of seconds with rows beyond those measured, over that between the two largest of these. Without it, the first steps
of a batch of drafts cost far more than was expected; with all of it, larger drafts are tried too seldom."""

_KEPT = 0.8
"""Weight of the steps before, for each new one, in the time of the host."""

_MOST_DRAFTERS = 64
"""Drafters whose seconds are remembered: requests may name many."""


class StepCosts:
    """Learns the seconds of a step as the sum of a forward, by its rows, and of drafting, by drafter, sessions and depth.

    Only whole steps are measured, since drafting and forward overlap on a GPU. The difference between measured and expected
    seconds is divided among the parts of the step by their variances: a Kalman filter without correlations. Of steps with a
    part that is new, the fastest of three counts: on a GPU the first one captures a graph. Seconds that were never measured
    are interpolated. Beyond the largest measured rows they grow a third as fast as between the two largest ones; beyond the
    only ones, or the largest depth, they are assumed not to grow: so larger drafts are tried. On a GPU, rows beyond a whole
    pass cost as many more passes, and steps of many sequences without drafts are measured by themselves. There a step with
    drafts can't be launched before its tokens are known: the device waits for the host, which drafts hide only in part.

    is_unsure: true if the last step has a part that was not measured three times.
    """

    def __init__(self, *, on_gpu: bool = False) -> None:
        self._on_gpu = on_gpu
        self._forwards: dict[int, _Estimate] = {}  # by bucket of rows, negative for large passes of single rows
        self._drafting = Recent[Hashable, dict[int, dict[int, _Estimate]]](_MOST_DRAFTERS)  # by bits of sessions, depth
        self._new = Recent[Hashable, list[float]](_MOST_NEW)
        self._hosts: dict[int, float] = {}  # by bits of sessions
        self._n_steps, self.most_rows, self.is_unsure = 0, 0, True

    def observe(
        self, rows: int, drafted: Sequence[tuple[Hashable, int, int]], seconds: float, *, single: bool = False
    ) -> None:
        """Learn from a step of `rows` rows; `drafted` holds drafter, number of sessions and depth of its drafts.

        single: True if each sequence has one row.
        """
        self._n_steps += 1
        self.most_rows, bucket = max(self.most_rows, rows), self._bucket(rows, single=single)
        self.is_unsure = not self._is_measured(bucket, drafted)
        if self.is_unsure:
            key = bucket, *((drafter, n.bit_length(), depth) for drafter, n, depth in drafted)
            first = [*(self._new.recall(key) or ()), seconds]
            self._new.keep(key, first)
            if len(first) < _N_NEW:
                return
            seconds, self.is_unsure = min(first), False
            del self._new[key]
        parts = [self._forward(bucket, seconds), *(self._draft(*each) for each in drafted)]
        expected = sum(part.mean for part in parts)
        for part in parts:
            drift = _DRIFT * (self._n_steps - part.step)
            part.variance = max(part.variance, min(part.variance + (drift * expected) ** 2, (_MOST_DRIFT * expected) ** 2))
            part.step = self._n_steps
        variance = sum(part.variance for part in parts) + (_NOISE * max(expected, 1e-9)) ** 2
        limit = _OUTLIER * sqrt(variance)
        error = min(max(seconds - expected, -limit), limit)
        for part in parts:
            gain = part.variance / variance
            part.mean += gain * error
            part.variance *= 1.0 - gain

    @property
    def is_known(self) -> bool:
        """True once any step was measured three times."""
        return bool(self._forwards)

    def _bucket(self, rows: int, *, single: bool) -> int:
        bucket = int(bucket_of(rows))
        return -bucket if self._on_gpu and single and rows >= _MANY else bucket

    def _is_measured(self, bucket: int, drafted: Sequence[tuple[Hashable, int, int]]) -> bool:
        tables = (self._drafting.get(drafter, {}).get(n.bit_length(), {}) for drafter, n, _ in drafted)
        depths = (depth for _, _, depth in drafted)
        return bucket in self._forwards and all(map(dict.__contains__, tables, depths))

    def forwards(self, rows: Ints) -> Floats:
        """Return the seconds of forwards by their rows."""
        table = {n: each.mean for n, each in self._forwards.items() if n > 0}
        table = table or {-n: each.mean for n, each in self._forwards.items()}
        known = sorted(table)
        seconds, buckets = [table[bucket] for bucket in known], bucket_of(rows)
        slope = _CAUTION * max((seconds[-1] - seconds[-2]) / (known[-1] - known[-2]), 0.0) if len(known) > 1 else 0.0
        if self._on_gpu and known[-1] >= _PASS:
            slope = seconds[-1] / known[-1]
        return np.interp(buckets, known, seconds) + slope * np.maximum(buckets - known[-1], 0)

    def plain(self, sessions: int) -> float:
        """Return the seconds of a forward of one row for each session."""
        found = self._forwards.get(self._bucket(sessions, single=True))
        return float(self.forwards(np.array([sessions]))[0]) if found is None else found.mean

    def learn_host(self, sessions: int, seconds: float) -> None:
        """Learn from a step without drafts for how long the host did not wait for the device."""
        bits = sessions.bit_length()
        self._hosts[bits] = _KEPT * self._hosts.get(bits, seconds) + (1 - _KEPT) * seconds

    def drafting(self, drafter: Hashable, sessions: int, depths: Ints) -> Floats:
        """Return the seconds in which a drafter drafts for some sessions, by depth; 0 at depth 0.

        Those of one depth alone say little, since part of them may be counted as the forward's; differences are right.
        Until they were measured with about as many sessions, they are proportional to the passes of the drafter, each of
        which takes at least as long as the host needs for a step; `drafter` may say how many sessions a pass holds.
        """
        bits, tables = sessions.bit_length(), self._drafting.recall(drafter) or {}
        nearest, per_pass = partial(min, key=lambda each: abs(each - bits)), getattr(drafter, "per_pass", inf)
        found, n_passes = np.zeros(len(depths)), -(-sessions // per_pass)
        if tables:
            known = sorted(table := tables[near := nearest(tables)])
            found = np.interp(depths, [0, *known], [0.0, *(table[depth].mean for depth in known)])
            found *= 1.0 if near == bits else n_passes / -(-(1 << near >> 1) // per_pass)
        least = -inf if bits in tables or not self._hosts else n_passes * self._hosts[nearest(self._hosts)]
        return np.where(depths > 0, np.maximum(found, least), 0.0)

    def _forward(self, bucket: int, first: float) -> _Estimate:
        if bucket not in self._forwards:
            seconds = float(self.forwards(np.array([abs(bucket)]))[0]) if self._forwards else first
            self._forwards[bucket] = _Estimate(seconds, seconds**2, self._n_steps)
        return self._forwards[bucket]

    def _draft(self, drafter: Hashable, sessions: int, depth: int) -> _Estimate:
        found = float(self.drafting(drafter, sessions, np.array([depth]))[0])
        tables = self._drafting.recall(drafter) or {}
        table = tables.setdefault(sessions.bit_length(), {})
        if depth not in table:
            scale = max(found, next(iter(self._forwards.values())).mean)
            table[depth] = _Estimate(found, (_NEW_DRAFT * scale) ** 2, self._n_steps)
            self._drafting.keep(drafter, tables)
        return table[depth]


class _Estimate:
    """Seconds of a part of a step, their variance, and the step that measured them last."""

    __slots__ = ("mean", "step", "variance")

    def __init__(self, mean: float, variance: float, step: int) -> None:
        self.mean, self.variance, self.step = mean, variance, step


def bucket_of(rows: int | Ints) -> Ints:
    """Return the number of rows that a forward of `rows` rows is rounded up to."""
    few = _BUCKETS[np.searchsorted(_BUCKETS[:-1], rows)]
    return np.where(np.less_equal(rows, _BUCKETS[-1]), few, -(-rows // 64) * 64)
