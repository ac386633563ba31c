"""The protocol of a shape."""

from typing import Protocol

from dflash.decode.drafting.draft import Draft
from dflash.model.candidates import Candidates


class Shape(Protocol):
    """Makes a draft from the candidates of a draft model. A frozen value without request state."""

    @property
    def depth(self) -> int | None:
        """Most draft tokens on a path; the drafter decides if None. Read by drafters with a pass for each position."""

    def wants(self, max_depth: int, max_draft: int) -> tuple[int, int]:
        """Return how many candidates the draft model should make. Called by drafters before they run it.

        Parameters
        ----------
        max_depth : int
            Most positions that the draft model can predict.
        max_draft : int
            Most draft tokens that can be verified.

        Returns
        -------
        positions, width : int
            Number of positions, and candidates at each; 0 positions if no draft is wanted.
        """

    def draft(self, candidates: Candidates, max_draft: int) -> Draft:
        """Return a draft of at most `max_draft` tokens. Called by drafters with the candidates that `wants` asked for."""
