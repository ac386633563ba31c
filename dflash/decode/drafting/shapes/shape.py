"""What a shape is."""

from typing import Protocol

from dflash.decode.drafting.draft import Draft
from dflash.model.candidates import Candidates


class Shape(Protocol):
    """Makes guesses of what a draft model thinks. A frozen value without request state."""

    def wants(self, max_depth: int, max_draft: int) -> tuple[int, int]:
        """Say what to ask a draft for.

        Parameters
        ----------
        max_depth : int
            Positions that it can look ahead.
        max_draft : int
            Guesses that can be verified.

        Returns
        -------
        positions, width : int
            Candidates are wanted for so many positions, and so many at each; the first is 0 if nothing is wanted.
        """
        ...

    def draft(self, candidates: Candidates, max_draft: int) -> Draft:
        """Make at most `max_draft` guesses of them."""
        ...
