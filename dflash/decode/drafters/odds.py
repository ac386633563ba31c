"""How often guesses turn out right: by their place in a draft, by what the drafter itself thinks, by the text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import exp, expm1, log, sqrt
from operator import mul

_FIRST, _FADING = 0.85, 0.98
"""Of a drafter that nothing is known of: good enough to be tried, and deeply."""

_TRUST, _MEMORY = 10.0, 0.99
"""Guesses that outweigh what is expected of a new drafter; what a draft counts a draft later."""

_LASTING = 0.998
"""What all drafts count a step later: whoever is not asked any more is as good as new in the end, and tried again."""

_HERE, _ALIKE = 0.97, 4.0
"""What failures in a text count a step later; how many outweigh that it is like others."""

_HOPE = 0.5
"""Standard errors by which a drafter may be better than it seems."""

_LEAST, _MOST = -4, 10


class Odds:
    """For each guess of a drafter, the chance that it is right if the one before it is; older steps count less.

    Guess i of a tree is the i-th that was added to it; there it is the ratio of the two chances.

    Parameters
    ----------
    n : int
        Most guesses.

    Attributes
    ----------
    given : list of float
        The chances; what was seldom tried is about as good as what comes before it.
    hoped : list of float
        What they may well be: of a drafter that was seldom asked much more, so that an unlucky start does not rule it out
        (upper confidence bounds, Auer et al. 2002).
    """

    def __init__(self, n: int) -> None:
        self._right, self._tried, self._at = [0.0] * n, [0.0] * n, 0
        self.given = list(accumulate([_FIRST] + [_FADING] * (n - 1), mul))
        self.hoped = list(map(_hoped, self.given, self._tried))

    def learn(self, chances: Sequence[float]) -> None:
        """Of some guesses each was right with this probability: 1 or 0 where that is known."""
        above = 1.0
        for i, chance in enumerate(chances):
            self._right[i] += chance
            self._tried[i] += above
            above = chance
        self._forget(_MEMORY)

    def pass_time(self, steps: int) -> None:
        """So many steps were done by now."""
        if steps > self._at:
            self._forget(_LASTING ** (steps - self._at))
            self._at = steps

    def _forget(self, share: float) -> None:
        expected = _FIRST / _FADING
        for i in range(len(self.given)):
            right, tried = share * self._right[i], share * self._tried[i]
            self._right[i], self._tried[i] = right, tried
            self.given[i] = expected = min((right + _TRUST * expected * _FADING) / (tried + _TRUST), 1.0)
            self.hoped[i] = _hoped(expected, tried)


def _hoped(chance: float, tried: float) -> float:
    return min(chance + _HOPE * sqrt(chance * (1.0 - chance) / (tried + _TRUST)), 1.0)


class Clues:
    """How often a guess is right that its drafter finds so likely, if those before it are; older guesses count less."""

    def __init__(self) -> None:
        self._right, self._tried = ([0.0] * (_MOST - _LEAST + 1) for _ in range(2))

    def given(self, scores: Sequence[float]) -> list[float]:
        """For each guess with such a log-probability, the chance that it is right if those before it are."""
        places = [_place(score) for score in scores]
        return [(self._right[i] + _TRUST * told) / (self._tried[i] + _TRUST) for i, told in places]

    def learn(self, scores: Sequence[float], n_right: int) -> None:
        """Of guesses with these scores, the first `n_right` were right, and the next one wrong."""
        for n, score in enumerate(scores[: n_right + 1]):
            i, _ = _place(score)
            self._right[i] = _MEMORY * self._right[i] + (n < n_right)
            self._tried[i] = _MEMORY * self._tried[i] + 1


@lru_cache(maxsize=512)
def _place(score: float) -> tuple[int, float]:
    """Log-odds in halves: the last ones are far apart as probabilities, and so are texts that are copied or not."""
    odds = score - log(max(-expm1(score), 1e-9))
    return min(max(round(2 * odds), _LEAST), _MOST) - _LEAST, exp(score)


class Ease:
    """How much more or less often guesses fail in one text than in others, whoever makes them."""

    def __init__(self) -> None:
        self._failed = self._expected = 0.0

    def learn(self, failed: float, expected: float) -> None:
        """So much of a draft failed, where so much was expected to."""
        self._failed += failed
        self._expected += expected

    def fade(self) -> None:
        """A step passes."""
        self._failed *= _HERE
        self._expected *= _HERE

    def here(self, given: Sequence[float]) -> list[float]:
        """Chances of guesses in other texts, each if those before it are right, as they are in this one."""
        factor = min((self._failed + _ALIKE) / (self._expected + _ALIKE), 4.0)
        return [max(1.0 - factor * (1.0 - chance), 0.02) for chance in given]


def all_right(given: Sequence[float]) -> list[float]:
    """For each guess, the chance that it and all before it are right."""
    return list(accumulate(given, mul))
