"""Acceptance rates of draft tokens by position, learned from drafts that were verified."""

from bisect import bisect
from collections.abc import Sequence
from math import exp, log1p, sqrt

PRIOR_RATE = 0.9
"""Acceptance rate of new drafters: high, so that it is used. 0.88 to 0.92 are equal in `benchmarks/adaptive_replay.py`."""

PRIOR_WEIGHT = 5.0
"""Observations that weigh as much as what was assumed before them, of a rate or of a request's bias. Found in the replay
together with `OPTIMISM`: with 7, some orders of the texts leave out the best drafter."""

DECAY = 0.995
"""Weight of a draft relative to the next one: about the last 200 count. Found in the replay: 0.98 loses up to a fifth where
few drafts are long; 0.99 is equal there, but its estimates keep an optimism that makes drafts too long."""

OPTIMISM = 1.0
"""Standard errors that are added to an estimated rate, so that a bad start does not exclude a drafter. Found in the replay:
0.75 leaves out the best drafter in some orders of the texts, 1.25 costs 1 to 2 % on every set."""

_MOST_AT_ONCE = 6
"""Drafts of one step, of many sessions, that reduce the weight of earlier ones: positions that are not drafted any more are
not forgotten within a few steps."""

_BORDERS = [-log1p(exp(-(half + 0.5) / 2)) for half in range(-4, 10)]


class AcceptanceRates:
    """Acceptance rates of one drafter by position, each given that the draft token before it is accepted.

    The prior is the rate of the position before, at the first one `prior`. `optimistic` holds upper confidence bounds
    (Auer et al. 2002).
    """

    def __init__(self, n: int) -> None:
        self.prior = PRIOR_RATE
        self._accepted, self._tried, self.expected, self.optimistic = ([0.0] * n for _ in range(4))
        self._bins = [(0.0, 0.0)] * (len(_BORDERS) + 1)
        self.decay(1.0)

    def learn(self, chances: Sequence[float], n: int = 1) -> float:
        """Add a draft by the probability of each token's acceptance, and return the expected probability of a rejection.

        For `n` drafts of one length, `chances` are their sums.
        """
        above, rejected = float(n), 0.0
        for i, chance in enumerate(chances):
            self._accepted[i] += chance
            self._tried[i] += above
            rejected += above * (1.0 - self.expected[i])
            above = chance
        self.decay(DECAY ** min(n, _MOST_AT_ONCE))
        return rejected

    def forget(self, n: int, weight: float) -> None:
        """Let what is known of the first `n` positions weigh at most `weight` drafts, without a change of the first rate."""
        self.prior, share = self.expected[0], weight / max(self._tried[0], weight)
        for i in range(n):
            self._accepted[i], self._tried[i] = share * self._accepted[i], share * self._tried[i]

    def decay(self, share: float) -> None:
        """Reduce the weight of all drafts to a share of it, and estimate the rates anew."""
        rate = self.prior
        for i, accepted in enumerate(self._accepted):
            self._accepted[i], self._tried[i] = share * accepted, share * self._tried[i]
            weight = self._tried[i] + PRIOR_WEIGHT
            rate = (share * accepted + PRIOR_WEIGHT * rate) / weight
            self.expected[i] = rate = rate if rate < 1.0 else 1.0  # in a tree, more may be accepted than of the one before
            self.optimistic[i] = hope if (hope := rate + OPTIMISM * sqrt(rate * (1.0 - rate) / weight)) < 1.0 else 1.0

    def by_score(self, scores: Sequence[float]) -> list[float]:
        """Return the rates of a chain's tokens by the drafter's log-probabilities, in bins of half a unit of log-odds."""
        known = [(*self._bins[bisect(_BORDERS, score)], score) for score in scores]
        return [(accepted + PRIOR_WEIGHT * exp(score)) / (tried + PRIOR_WEIGHT) for accepted, tried, score in known]

    def learn_scores(self, scores: Sequence[float], n_accepted: int) -> None:
        """Add a chain by its scores: the first `n_accepted` tokens were accepted and the next one was rejected."""
        for i, score in enumerate(scores[: n_accepted + 1]):
            at = bisect(_BORDERS, score)
            accepted, tried = self._bins[at]
            self._bins[at] = DECAY * accepted + (i < n_accepted), DECAY * tried + 1.0


class ObservedRatio:
    """Ratio `factor` of observed to expected values, such as a request's rejections; 1 before the first observation."""

    def __init__(self) -> None:
        self._observed, self._expected, self.factor = 0.0, 0.0, 1.0

    def learn(self, observed: float, expected: float) -> None:
        """Add an observation."""
        self._observed, self._expected = DECAY * self._observed + observed, DECAY * self._expected + expected
        self.factor = (self._observed + PRIOR_WEIGHT) / (self._expected + PRIOR_WEIGHT)
