"""How often guesses turn out right: by their place in a draft, by what the drafter itself thinks, by the text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import exp, expm1, log
from operator import mul

_FIRST, _FADING = 0.85, 0.98
"""Of a drafter that nothing is known of: good enough to be tried, and deeply."""

_TRUST, _MEMORY = 10.0, 0.99
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
    """

    def __init__(self, n: int) -> None:
        self._right, self._tried = [0.0] * n, [0.0] * n
        self.given = list(accumulate([_FIRST] + [_FADING] * (n - 1), mul))

    def learn(self, chances: Sequence[float]) -> None:
        """Of some guesses each was right with this probability: 1 or 0 where that is known."""
        above, expected = 1.0, _FIRST / _FADING
        for i in range(len(self.given)):
            self._right[i] *= _MEMORY
            self._tried[i] *= _MEMORY
            if i < len(chances):
                self._right[i] += chances[i]
                self._tried[i] += above
                above = chances[i]
            expected *= _FADING
            expected = min((self._right[i] + _TRUST * expected) / (self._tried[i] + _TRUST), 1.0)
            self.given[i] = expected


class Clues:
    """How often a guess is right that its drafter finds so likely, if those before it are; older guesses count less."""

    def __init__(self) -> None:
        self._right, self._tried = ([0.0] * (_MOST - _LEAST + 1) for _ in range(2))

    def given(self, scores: Sequence[float]) -> list[float]:
        """For each guess with such a log-probability, the chance that it is right if those before it are."""
        places = [(_place(score), exp(score)) for score in scores]
        return [(self._right[i] + _TRUST * told) / (self._tried[i] + _TRUST) for i, told in places]

    def learn(self, scores: Sequence[float], n_right: int) -> None:
        """Of guesses with these scores, the first `n_right` were right, and the next one wrong."""
        for n, score in enumerate(scores[: n_right + 1]):
            i = _place(score)
            self._right[i] = _MEMORY * self._right[i] + (n < n_right)
            self._tried[i] = _MEMORY * self._tried[i] + 1


def _place(score: float) -> int:
    """Log-odds in halves: the last ones are far apart as probabilities, and so are texts that are copied or not."""
    odds = score - log(max(-expm1(score), 1e-9))
    return min(max(round(2 * odds), _LEAST), _MOST) - _LEAST


class Ease:
    """How much more or less often guesses fail in one text than in others, whoever makes them.

    Parameters
    ----------
    memory : float
        What a draft counts a draft later, below 1.
    trust : float
        How many failures outweigh that the text is like others.
    """

    def __init__(self, memory: float, trust: float) -> None:
        self._memory, self._trust, self._failed, self._expected = memory, trust, 0.0, 0.0

    def learn(self, failed: float, expected: float) -> None:
        """So much of a draft failed, where so much was expected to."""
        self._failed = self._memory * self._failed + failed
        self._expected = self._memory * self._expected + expected

    def here(self, given: Sequence[float]) -> list[float]:
        """Chances of guesses in other texts, each if those before it are right, as they are in this one."""
        factor = min((self._failed + self._trust) / (self._expected + self._trust), 4.0)
        return [max(1.0 - factor * (1.0 - chance), 0.02) for chance in given]


def all_right(given: Sequence[float]) -> list[float]:
    """For each guess, the chance that it and all before it are right."""
    return list(accumulate(given, mul))
