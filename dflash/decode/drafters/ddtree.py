"""The draft tree by its own name."""

import os
from typing import Any

from dflash.decode.drafters.dflash import DRAFT_OPTIONS, DFlash
from dflash.decode.drafting.drafter import Drafter, Strategy
from dflash.decode.drafting.shapes.tree import BUDGET, Tree
from dflash.decode.registry import register

register("ddtree", number="NODES", shape=Tree, default=BUDGET, takes=DRAFT_OPTIONS)(DFlash)


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
