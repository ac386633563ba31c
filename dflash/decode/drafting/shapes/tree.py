"""Drafts with several tokens for a position where the draft model is unsure."""

from dataclasses import dataclass

import numpy as np

from dflash.decode.drafting.draft import Draft
from dflash.decode.sampling.params import check_whole
from dflash.decode.settings import spelled
from dflash.kernels.sample import POOL
from dflash.kernels.tree import grow
from dflash.model.candidates import Candidates

BUDGET = 22
"""Draft tokens of a tree if no number is given."""


@dataclass(frozen=True, repr=False)
class Tree:
    """The chain of the best candidates, then the likeliest of all other continuations (DDTree).

    Parameters
    ----------
    budget : int
        Number of draft tokens. If it does not exceed the positions that the drafter predicts, the tree is a chain.
    depth : int, optional
        Most draft tokens on a path; as many as the drafter predicts if None.
    width : int, optional
        Most candidates considered for a position; as many as can be useful if None.

    Raises
    ------
    RequestError
        If an argument is below 1 or not a whole number.

    References
    ----------
    DDTree, arXiv 2604.12989.
    """

    budget: int
    depth: int | None = None
    width: int | None = None

    __repr__ = spelled

    def __post_init__(self) -> None:
        for name in ("budget", "depth", "width"):
            value = getattr(self, name)
            if value is not None or name == "budget":
                check_whole(f"{self!r}: {name}", value, 1)

    def wants(self, max_depth: int, max_draft: int) -> tuple[int, int]:
        """Return positions and width; see `Shape.wants`. One position may hold all tokens beyond the chain."""
        n = min(self.budget, max_draft)
        positions = max(min(max_depth, n, self.depth or max_depth), 0)
        # the chain takes one token at each position
        return positions, max(min(n - positions + 1, self.width or POOL, POOL), 1)

    def draft(self, candidates: Candidates, max_draft: int) -> Draft:
        """Return the tree of the likeliest paths."""
        return grown(candidates, min(self.budget, max_draft), self.depth, self.width)


def grown(candidates: Candidates, n: int, depth: int | None = None, width: int | None = None) -> Draft:
    """Return a tree of `n` draft tokens, or of as many as the candidates allow."""
    ids, scores, edges = candidates
    ids, scores = np.ascontiguousarray(ids[:depth, :width]), np.ascontiguousarray(scores[:depth, :width])
    if edges is not None:
        edges = np.ascontiguousarray(edges[:depth, :width, :width])
    tokens, parents = np.empty(max(n, 0), np.int32), np.empty(max(n, 0), np.int32)
    count = grow(ids, scores, edges, tokens=tokens, parents=parents)
    return Draft(tokens[:count], parents[:count])
