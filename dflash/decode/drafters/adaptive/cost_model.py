"""Seconds of steps, and the draft that gives most tokens a second."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash.decode.drafters.adaptive.draft_option import DraftOption


_TRIAL_COST = 1.7
"""Most seconds of a step that tries instant drafts, relative to a plain step."""


class CostTable:
    """Seconds of a step for each draft of one session, in a batch with the other sessions.

    Parameters
    ----------
    unasked : list of float
        Seconds of a step that runs no drafter, by number of draft tokens.
    waiting : dict of DraftOption to float
        Seconds that a step with an instant drafter takes longer, because a GPU has to wait for the host.
    asked : dict of DraftOption to list of (int, float)
        Draft sizes, ascending, and seconds of a step that runs the drafter with each.
    tokens : float
        Tokens that the other sessions gain in a step.

    Attributes
    ----------
    plain : float
        Tokens a second of a plain step.
    cheap : int
        Draft tokens of an instant drafter that cost little to try, at least 1.
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
        self.cheap = max(bisect_right(unasked, _TRIAL_COST * unasked[0]) - 1, 1)

    def best(self, option: DraftOption, expected: Sequence[float], max_draft: int) -> tuple[float, int]:
        """Return the most tokens a second of an option, and the draft size for it; size 0 if no size fits.

        Parameters
        ----------
        option : DraftOption
            A drafter that is not instant.
        expected : sequence of float
            Acceptance rate of each draft token, given that those before it are accepted.
        max_draft : int
            Most draft tokens.
        """
        tokens = self._tokens(expected)
        best, most = 0.0, 0
        for n, seconds in self.asked[option]:
            if n <= max_draft and tokens[n] >= best * seconds:
                best, most = tokens[n] / seconds, n
        return best, most

    def gain(self, option: DraftOption, expected: Sequence[float], rate: float) -> tuple[float, int]:
        """Return the gain in tokens of verifying a draft that was made, and the number of its tokens to verify.

        The gain is the expected number of tokens minus the tokens that the same time would give at `rate`.

        Parameters
        ----------
        option : DraftOption
            The drafter; its own time is spent already and does not count.
        expected : sequence of float
            Acceptance rates of the draft tokens.
        rate : float
            Tokens a second of the best choice.
        """
        tokens, waiting = self._tokens(expected), rate * self.waiting.get(option, 0.0)
        best, most = tokens[0] - rate * self.unasked[0], 0
        for n in (*option.sizes[: bisect_left(option.sizes, len(expected))], len(expected)):
            gain = tokens[n] - rate * self.unasked[n] - waiting
            if n and gain >= best:
                best, most = gain, n
        return best, most

    def _tokens(self, expected: Sequence[float]) -> list[float]:
        """Return the tokens of a step that verifies the first 0, 1, 2, ... draft tokens."""
        return list(accumulate(accumulate(expected, mul), initial=self.tokens + 1))
