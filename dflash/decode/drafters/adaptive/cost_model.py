"""Expected tokens and milliseconds of drafts: acceptance rates, the cost model, and the draft size that gains most."""

from bisect import bisect
from collections.abc import Sequence
from math import exp, log1p, sqrt

from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain, Shape, Tree
from dflash.kernels.ragged import PENDING

DEPTH = 15
"""Most draft tokens of a chain whose depth is not given: with the last token they fill the 16 rows of a kernel's tile."""

PRIOR_RATE = 0.9
"""Acceptance rate of new drafters: high, so that it is used. 0.88 to 0.92 are equal in `benchmarks/adaptive_replay.py`."""

PRIOR_WEIGHT = 5.0
"""Observations that weigh as much as what was assumed before them, of a rate or of a request's bias. Found in the replay
together with `OPTIMISM`: with 7, some orders of the texts leave out the best drafter."""

DECAY = 0.995
"""Weight of a draft relative to the next one: about the last 200 count. Found in the replay: 0.98 loses up to a fifth where
few drafts are long; 0.99 is equal there, but its estimates keep an optimism that makes drafts too long."""

IDLE_DECAY = 0.998
"""Weight of a draft relative to one a step later: an unused drafter returns to the prior and is tried again. Half is lost in
350 steps; in the replay, 0.995 costs 2 % of the worst set in useless trials."""

OPTIMISM = 1.0
"""Standard errors that are added to an estimated rate, so that a bad start does not exclude a drafter. Found in the replay:
0.75 leaves out the best drafter in some orders of the texts, 1.25 costs 1 to 2 % on every set."""

_BORDERS = [-log1p(exp(-(half + 0.5) / 2)) for half in range(-4, 10)]


class AcceptanceRates:
    """Acceptance rates of one drafter by position, each given that the draft token before it is accepted.

    The prior is the rate of the position before. `optimistic` holds upper confidence bounds (Auer et al. 2002).
    """

    def __init__(self, n: int) -> None:
        self._accepted, self._tried, self.expected, self.optimistic = ([0.0] * n for _ in range(4))
        self._bins = [(0.0, 0.0)] * (len(_BORDERS) + 1)
        self.decay(1.0)

    def learn(self, chances: Sequence[float]) -> float:
        """Add a draft by the probability of each token's acceptance, and return the expected probability of a rejection."""
        above, rejected = 1.0, 0.0
        for i, chance in enumerate(chances):
            self._accepted[i] += chance
            self._tried[i] += above
            rejected += above * (1.0 - self.expected[i])
            above = chance
        self.decay(DECAY)
        return rejected

    def decay(self, share: float) -> None:
        """Reduce the weight of all drafts to a share of it, and estimate the rates anew."""
        rate = PRIOR_RATE
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


class Variant:
    """A drafter, its largest shape and acceptance rates, and `extra` times `pace`: milliseconds beside a forward by size."""

    def __init__(self, strategy: Strategy, part: int, pending: int = PENDING) -> None:
        self.drafter, self.shape, self.part = strategy.drafter, strategy.shape or Chain(), part
        most = self.shape.budget if isinstance(self.shape, Tree) else self.shape.depth or DEPTH
        self.most = min(most, pending - 1)
        self.rates, self.extra, self.pace = AcceptanceRates(self.most), [0.0] * (self.most + 1), ObservedRatio()

    def shape_of(self, n: int) -> Shape:
        """Return the shape with `n` draft tokens."""
        return Tree(n, self.shape.depth, self.shape.width) if isinstance(self.shape, Tree) else Chain(n)


class CostModel:
    """Milliseconds of a step: of its forward by the rows of all sessions, and of all else by drafter and draft size."""

    def __init__(
        self, strategies: Sequence[Strategy], forwards: Sequence[float], *, on_host: bool, pending: int = PENDING
    ) -> None:
        self.drafters = list(dict.fromkeys(each.drafter for each in strategies))
        self.options = [Variant(each, self.drafters.index(each.drafter), pending) for each in strategies]
        self.asked = [option for option in self.options if not option.drafter.instant]
        self.instant = [option for option in self.options if option.drafter.instant]
        self.forwards, self.plain, self.on_host, self.n_steps = forwards, 0.0, on_host, 0

    def step_ms(self, option: Variant, rows: int) -> list[float]:
        """Return the milliseconds of a step by draft size, in a batch with `rows` rows beside the draft tokens."""
        pace, forwards = option.pace.factor, self.forwards[rows : rows + option.most + 1]
        return [ms + pace * extra for ms, extra in zip(forwards, option.extra, strict=True)]


def best_size(rates: Sequence[float], bias: float, ms: Sequence[float], *, tokens: float, worth: float) -> tuple[float, int]:
    """Return the largest gain of a step in tokens, and the draft size that has it.

    The step gives `tokens` without a draft. One more draft token pays if the probability that all up to it are accepted
    exceeds its milliseconds times their `worth` in tokens. `bias` is the ratio of rejections to those by the `rates`.
    """
    best, size, survival = tokens - worth * ms[0], 0, 1.0
    for n, rate in enumerate(rates, 1):
        survival *= 1.0 - bias * (1.0 - rate)
        if survival <= 0.0:
            break
        tokens += survival
        gain = tokens - worth * ms[n]
        if gain > best:
            best, size = gain, n
    return best, size
