"""What steps take at present, and so which of them is worth most."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash.decode.drafters.adaptive.draft_option import DraftOption


_TRIED = 1.7
"""What a step may take, of a plain one, to see whether guesses are any good."""


class CostTable:
    """Seconds of the steps of one session, beside what the others have in them.

    Parameters
    ----------
    unasked : list of float
        Of a step that nobody is asked for, with so many guesses.
    waiting : dict of DraftOption to float
        How much longer it takes if they were found in the text, for which a GPU has to wait.
    asked : dict of DraftOption to list of (int, float)
        Numbers of guesses to choose from, ascending, and of a step whose drafter is asked for so many.
    tokens : float
        Tokens that the others have in a step.

    Attributes
    ----------
    plain : float
        Tokens a second that a step without guesses gives.
    cheap : int
        Guesses that nobody is asked for and that cost little to try, at least one.
    """

    def __init__(
        self,
        unasked: list[float],
        waiting: dict[DraftOption, float],
        asked: dict[DraftOption, list[tuple[int, float]]],
        tokens: float,
    ) -> None:
        self.unasked, self.waiting, self.asked, self.tokens = unasked, waiting, asked, tokens
        self.plain = (tokens + 1) / unasked[0]
        self.cheap = max(bisect_right(unasked, _TRIED * unasked[0]) - 1, 1)

    def best(self, option: DraftOption, given: Sequence[float], max_draft: int) -> tuple[float, int]:
        """Most tokens a second that an option gives, and with how many guesses: at least 1, if there is room for that.

        Parameters
        ----------
        option : DraftOption
            Whom to ask.
        given : sequence of float
            For each guess the chance that it is right if those before it are.
        max_draft : int
            Most guesses.
        """
        tokens = self._tokens(given)
        best, most = 0.0, 0
        for n, seconds in self.asked[option]:
            if n <= max_draft and tokens[n] >= best * seconds:
                best, most = tokens[n] / seconds, n
        return best, most

    def gain(self, option: DraftOption, given: Sequence[float], rate: float) -> tuple[float, int]:
        """How many tokens more than the forward's time is worth some guesses give, and how many of them to verify for that.

        Parameters
        ----------
        option : DraftOption
            Who made them; what it took to ask is spent.
        given : sequence of float
            Their chances.
        rate : float
            Tokens a second that time is worth.
        """
        tokens, waiting = self._tokens(given), rate * self.waiting.get(option, 0.0)
        best, most = tokens[0] - rate * self.unasked[0], 0
        for n in (*option.sizes[: bisect_left(option.sizes, len(given))], len(given)):
            gain = tokens[n] - rate * self.unasked[n] - waiting
            if n and gain >= best:
                best, most = gain, n
        return best, most

    def _tokens(self, given: Sequence[float]) -> list[float]:
        """What a step gives with 0, 1, 2, ... of some guesses."""
        return list(accumulate(accumulate(given, mul), initial=self.tokens + 1))
