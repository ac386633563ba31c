"""Acceptance rates of draft tokens: by position, by the drafter's own score, and by request."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from math import exp, log1p, sqrt
from operator import mul

_FIRST, _FADING = 0.85, 0.98
"""Prior acceptance rate of the first draft token, and its factor per position.

High enough that a new drafter is tried, with long drafts.
"""

_PRIOR, _DRAFT_DECAY = 10.0, 0.99
"""Weight of the prior in draft tokens, and decay of the statistics per draft of the drafter."""

_STEP_DECAY = 0.998
"""Decay of the statistics per step of the model: a drafter that is not used returns to its prior and is tried again."""

_BIAS_DECAY, _BIAS_PRIOR = 0.97, 4.0
"""Decay of a request's rejections per step, and number of rejections that weighs as much as the prior of no bias."""

_OPTIMISM = 0.5
"""Standard errors between the estimated and the optimistic acceptance rate."""

_BORDERS = [-log1p(exp(-(half + 0.5) / 2)) for half in range(-4, 10)]
"""Limits of the bins of `Calibration` as log-probabilities: probabilities whose log-odds are half units apart."""


class AcceptanceRates:
    """Acceptance rate of each draft token of a drafter, given that the token before it is accepted. Older steps count less.

    Draft token i of a tree is the i-th that was added. There the rate is the ratio of the probabilities of i and i - 1.

    Parameters
    ----------
    n : int
        Most draft tokens.

    Attributes
    ----------
    expected : list of float
        The rates. The prior of a position is derived from the rate of the position before it.
    optimistic : list of float
        Upper confidence bounds of the rates (Auer et al. 2002). They are far above `expected` for a drafter that was seldom
        used, so that a bad start does not exclude it.
    """

    def __init__(self, n: int) -> None:
        self._right, self._tried, self._at = [0.0] * n, [0.0] * n, 0
        self.expected, self.optimistic = self._estimates()

    def learn(self, chances: Sequence[float]) -> float:
        """Add one draft: the probability that each token and all before it are accepted, 1 or 0 where that is known.

        Returns
        -------
        float
            Probability of a rejection in this draft by the rates before the update.
        """
        above, failing = 1.0, 0.0
        for i, chance in enumerate(chances):
            self._right[i] += chance
            self._tried[i] += above
            failing += above * (1.0 - self.expected[i])
            above = chance
        self._forget(_DRAFT_DECAY)
        return failing

    def pass_time(self, steps: int) -> None:
        """Decay the statistics up to a step number of the model."""
        if steps > self._at:
            self._forget(_STEP_DECAY ** (steps - self._at))
            self._at = steps

    def _forget(self, share: float) -> None:
        self._right = [share * right for right in self._right]
        self._tried = [share * tried for tried in self._tried]
        self.expected, self.optimistic = self._estimates()

    def _estimates(self) -> tuple[list[float], list[float]]:
        """Return `expected` and `optimistic`."""
        expected, optimistic, chance = [], [], _FIRST / _FADING
        for right, tried in zip(self._right, self._tried, strict=True):
            weight = tried + _PRIOR
            chance = (right + _PRIOR * _FADING * chance) / weight
            chance = chance if chance < 1.0 else 1.0
            hope = chance + _OPTIMISM * sqrt(chance * (1.0 - chance) / weight)
            expected.append(chance)
            optimistic.append(hope if hope < 1.0 else 1.0)
        return expected, optimistic


class Calibration:
    """Acceptance rate by the drafter's own log-probability of a draft token. Older draft tokens count less.

    Bins are half a unit of log-odds wide. They separate probabilities near 1, where copied and other text differ.
    """

    def __init__(self) -> None:
        self._right, self._tried = ([0.0] * (len(_BORDERS) + 1) for _ in range(2))

    def expected(self, scores: Sequence[float]) -> list[float]:
        """Return the acceptance rate for each score, given that the tokens before it are accepted."""
        places = [bisect(_BORDERS, score) for score in scores]
        priors = map(exp, scores)
        return [(self._right[i] + _PRIOR * p) / (self._tried[i] + _PRIOR) for i, p in zip(places, priors, strict=True)]

    def learn(self, scores: Sequence[float], n_right: int) -> None:
        """Add one draft by its scores: the first `n_right` tokens were accepted and the next one was rejected."""
        for n, score in enumerate(scores[: n_right + 1]):
            i = bisect(_BORDERS, score)
            self._right[i] = _DRAFT_DECAY * self._right[i] + (n < n_right)
            self._tried[i] = _DRAFT_DECAY * self._tried[i] + 1


class RequestBias:
    """Ratio of rejections in one request to those expected from other requests, over all drafters."""

    def __init__(self) -> None:
        self._failed = self._expected = 0.0

    def learn(self, failed: float, expected: float) -> None:
        """Add the observed and the expected number of rejections of a draft."""
        self._failed += failed
        self._expected += expected

    def fade(self) -> None:
        """Decay the statistics by one step."""
        self._failed *= _BIAS_DECAY
        self._expected *= _BIAS_DECAY

    def adjusted(self, expected: Sequence[float]) -> list[float]:
        """Return acceptance rates of other requests, adjusted to this one."""
        factor = (self._failed + _BIAS_PRIOR) / (self._expected + _BIAS_PRIOR)
        factor = factor if factor < 4.0 else 4.0
        return [adjusted if (adjusted := 1.0 - factor * (1.0 - chance)) > 0.02 else 0.02 for chance in expected]


def all_right(expected: Sequence[float]) -> list[float]:
    """Return for each draft token the probability that it and all before it are accepted."""
    return list(accumulate(expected, mul))
