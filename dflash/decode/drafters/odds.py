"""How often guesses turn out right, by their place in a draft."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.ragged import PENDING

_FIRST, _NEXT, _FADING = 0.75, 0.85, 0.92


class Odds:
    """Estimates for each guess that it will be text; older steps count less.

    Guess i of a chain is right only if those before it are; guess i of a tree is the i-th that was added to it, and the
    first guesses of a tree are a smaller one. So a draft of N guesses tells about all shorter ones.

    Parameters
    ----------
    memory : float
        What a step counts a step later, below 1.
    trust : float
        How many steps of its own outweigh what was expected before.
    prior : Odds, optional
        Tells what is expected; if None, that drafts are good, so that they are tried.
    """

    def __init__(self, memory: float, trust: float, prior: Odds | None = None) -> None:
        self._memory, self._trust, self._prior = memory, trust, prior
        self._right, self._tried = np.zeros(PENDING), np.zeros(PENDING)
        self._expected = _FIRST * _NEXT ** np.arange(PENDING)

    def learn(self, n: int, right: Sequence[int]) -> None:
        """Of `n` guesses that were wanted these were right."""
        self._right *= self._memory
        self._tried *= self._memory
        self._tried[:n] += 1
        self._right[list(right)] += 1

    def chances(self) -> NDArray[np.float64]:
        """For each guess (PENDING,), the probability that it will be text."""
        expected = self._expected if self._prior is None else self._prior.chances()
        found = (self._right + self._trust * expected) / (self._tried + self._trust)
        n = int(np.count_nonzero(self._tried > 1))
        if 0 < n < PENDING:
            # what was seldom tried is about as good as what comes before it, so that it is tried
            last = found[n - 1]
            fading = last * _FADING ** np.arange(1, PENDING - n + 1)
            found[n:] = fading if self._prior is None else np.minimum(expected[n:] * last / max(expected[n - 1], 1e-9), last)
        return found

    def tokens(self) -> NDArray[np.float64]:
        """How many tokens a step is expected to give, the target's own included, by its guesses (1 + PENDING,)."""
        return np.concatenate([[1.0], 1.0 + np.cumsum(self.chances())])
