"""Drafts with one token for each position."""

from dataclasses import dataclass

import numpy as np

from dflash.decode.drafting.draft import Draft
from dflash.decode.drafting.shapes.tree import grown
from dflash.decode.sampling.params import check_whole
from dflash.decode.settings import spelled
from dflash.model.candidates import Candidates


@dataclass(frozen=True, repr=False)
class Chain:
    """The best candidate at each position, given the one taken before it if the candidates depend on each other.

    Parameters
    ----------
    depth : int, optional
        Most draft tokens; as many as the drafter can make if None.

    Raises
    ------
    RequestError
        If the depth is below 1 or not a whole number.
    """

    depth: int | None = None

    __repr__ = spelled

    def __post_init__(self) -> None:
        if self.depth is not None:
            check_whole(f"{self!r}: depth", self.depth, 1)

    def wants(self, max_depth: int, max_draft: int) -> tuple[int, int]:
        """Return the number of positions, and a width of 1; see `Shape.wants`."""
        return max(min(max_depth, max_draft, self.depth or max_depth), 0), 1

    def draft(self, candidates: Candidates, max_draft: int) -> Draft:
        """Return the best candidates up to the first position that has none."""
        n = max(min(len(candidates), max_draft, self.depth or max_draft), 0)
        if candidates.edges is not None:
            return grown(candidates, n)
        best = candidates.ids[:n, 0]
        missing = np.flatnonzero(best < 0)
        n = int(missing[0]) if len(missing) else n
        return Draft(best[:n], scores=candidates.scores[:n, 0])
