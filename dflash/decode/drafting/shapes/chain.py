"""One guess for each position."""

from dataclasses import dataclass

import numpy as np

from dflash.decode.drafting.draft import Draft
from dflash.decode.drafting.shapes.tree import grown
from dflash.decode.sampling.params import check_whole
from dflash.decode.settings import spelled
from dflash.model.candidates import Candidates


@dataclass(frozen=True, repr=False)
class Chain:
    """The best candidate at each position; where it depends on the one before it, on the one that was taken there.

    Parameters
    ----------
    depth : int, optional
        Most guesses; as many as the drafter can make if None.

    Raises
    ------
    RequestError
        If the depth is below 1 or no whole number.
    """

    depth: int | None = None

    __repr__ = spelled

    def __post_init__(self) -> None:
        if self.depth is not None:
            check_whole(f"{self!r}: depth", self.depth, 1)

    def wants(self, max_depth: int, max_draft: int) -> tuple[int, int]:
        """One candidate for each position."""
        return max(min(max_depth, max_draft, self.depth or max_depth), 0), 1

    def draft(self, candidates: Candidates, max_draft: int) -> Draft:
        """Take the best as long as there is one."""
        n = max(min(len(candidates), max_draft, self.depth or max_draft), 0)
        if candidates.edges is not None:
            return grown(candidates, n)
        best = candidates.ids[:n, 0]
        missing = np.flatnonzero(best < 0)
        n = int(missing[0]) if len(missing) else n
        return Draft(best[:n], scores=candidates.scores[:n, 0])
