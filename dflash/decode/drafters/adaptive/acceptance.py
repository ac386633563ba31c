"""How often guesses turn out right: by their place in a draft, by what the drafter itself thinks, by the text."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from math import exp, log1p, sqrt
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

_BORDERS = [-log1p(exp(-(half + 0.5) / 2)) for half in range(-4, 10)]
"""Log-probabilities between which guesses are taken for alike."""


class AcceptanceRates:
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
        self.given, self.hoped = self._told()

    def learn(self, chances: Sequence[float]) -> float:
        """Of some guesses each was right with this probability: 1 or 0 where that is known.

        Returns
        -------
        float
            How many of them were expected to be the first that is wrong, by what was known before.
        """
        above, failing = 1.0, 0.0
        for i, chance in enumerate(chances):
            self._right[i] += chance
            self._tried[i] += above
            failing += above * (1.0 - self.given[i])
            above = chance
        self._forget(_MEMORY)
        return failing

    def pass_time(self, steps: int) -> None:
        """So many steps were done by now."""
        if steps > self._at:
            self._forget(_LASTING ** (steps - self._at))
            self._at = steps

    def _forget(self, share: float) -> None:
        self._right = [share * right for right in self._right]
        self._tried = [share * tried for tried in self._tried]
        self.given, self.hoped = self._told()

    def _told(self) -> tuple[list[float], list[float]]:
        """What all this says: `given` and `hoped`."""
        given, hoped, chance = [], [], _FIRST / _FADING
        for right, tried in zip(self._right, self._tried, strict=True):
            weight = tried + _TRUST
            chance = (right + _TRUST * _FADING * chance) / weight
            chance = chance if chance < 1.0 else 1.0
            hope = chance + _HOPE * sqrt(chance * (1.0 - chance) / weight)
            given.append(chance)
            hoped.append(hope if hope < 1.0 else 1.0)
        return given, hoped


class Calibration:
    """How often a guess is right that its drafter finds so likely, if those before it are; older guesses count less.

    What is known is kept by log-odds, in halves: the last ones are far apart as probabilities, and so are texts that are
    copied or not.
    """

    def __init__(self) -> None:
        self._right, self._tried = ([0.0] * (len(_BORDERS) + 1) for _ in range(2))

    def given(self, scores: Sequence[float]) -> list[float]:
        """For each guess with such a log-probability, the chance that it is right if those before it are."""
        places = [bisect(_BORDERS, score) for score in scores]
        told = map(exp, scores)
        return [(self._right[i] + _TRUST * p) / (self._tried[i] + _TRUST) for i, p in zip(places, told, strict=True)]

    def learn(self, scores: Sequence[float], n_right: int) -> None:
        """Of guesses with these scores, the first `n_right` were right, and the next one wrong."""
        for n, score in enumerate(scores[: n_right + 1]):
            i = bisect(_BORDERS, score)
            self._right[i] = _MEMORY * self._right[i] + (n < n_right)
            self._tried[i] = _MEMORY * self._tried[i] + 1


class RequestBias:
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
        factor = (self._failed + _ALIKE) / (self._expected + _ALIKE)
        factor = factor if factor < 4.0 else 4.0
        return [here if (here := 1.0 - factor * (1.0 - chance)) > 0.02 else 0.02 for chance in given]


def all_right(given: Sequence[float]) -> list[float]:
    """For each guess, the chance that it and all before it are right."""
    return list(accumulate(given, mul))
