"""The draft tree by its own name."""

import os
from typing import Any

from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafting.drafter import Drafter
from dflash.decode.drafting.shapes import Tree
from dflash.decode.strategy import Strategy

BUDGET = 22
"""Guesses of a tree, unless told otherwise."""


def DDTree(draft: str | os.PathLike[str] | Drafter = "demo-draft", budget: int = BUDGET, **settings: Any) -> Strategy:  # noqa: N802
    """Guess a tree of tokens with a draft model.

    Parameters
    ----------
    draft : str, path or Drafter
        A draft model as `DFlash` takes it, or any drafter that leaves the shape open.
    budget : int
        Guesses in all.
    **settings
        Further ones of `DFlash`.
    """
    drafter = DFlash(draft, **settings) if isinstance(draft, str | os.PathLike) else draft
    return Strategy(drafter, Tree(budget))
