"""What steps take at present, and so which of them is worth most."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from dflash.decode.drafters.bets import Worth
from dflash.decode.drafters.odds import all_right

if TYPE_CHECKING:
    from dflash.decode.drafters.choice import Option


_TRIED = 1.7
"""What a step may take, of a plain one, to see whether guesses are any good."""


class Prices(NamedTuple):
    """Seconds of the steps of one session, beside what the others have in them.

    Parameters
    ----------
    unasked : list of float
        Of a step that nobody is asked for, with so many guesses.
    waiting : dict of Option to float
        How much longer it takes if they were found in the text, for which a GPU has to wait.
    asked : dict of Option to list of (int, float)
        Numbers of guesses to choose from, and of a step whose drafter is asked for so many.
    tokens : float
        Tokens that the others have in a step.
    """

    unasked: list[float]
    waiting: dict[Option, float]
    asked: dict[Option, list[tuple[int, float]]]
    tokens: float

    @property
    def cheap(self) -> int:
        """Guesses that nobody is asked for and that cost little to try, at least one."""
        return max(bisect_right(self.unasked, _TRIED * self.unasked[0]) - 1, 1)

    @property
    def plain(self) -> Worth:
        """A step without guesses."""
        return Worth((self.tokens + 1) / self.unasked[0], 0)

    def best(self, option: Option, given: Sequence[float], room: int) -> Worth:
        """The number of guesses, of at least 1 that there is room for, that gives most tokens a second.

        Parameters
        ----------
        option : Option
            Whom to ask.
        given : sequence of float
            For each guess the chance that it is right if those before it are.
        room : int
            Most guesses.
        """
        tokens = list(accumulate(all_right(given), initial=self.tokens + 1))
        return Worth(*max([(tokens[n] / seconds, n) for n, seconds in self.asked[option] if n <= room]))

    def gain(self, option: Option, given: Sequence[float], rate: float) -> tuple[float, int]:
        """How many tokens more than the forward's time is worth some guesses give, and how many of them to verify for that.

        Parameters
        ----------
        option : Option
            Who made them; what it took to ask is spent.
        given : sequence of float
            Their chances.
        rate : float
            Tokens a second that time is worth.
        """
        tokens = list(accumulate(all_right(given), initial=self.tokens + 1))
        sizes = [0, *(n for n in option.sizes if n < len(given)), len(given)]
        waiting = self.waiting.get(option, 0.0)
        return max([(tokens[n] - rate * (self.unasked[n] + (waiting if n else 0.0)), n) for n in sizes])
