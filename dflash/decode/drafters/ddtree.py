"""Draft trees of a DFlash model (DDTree)."""

import os
from typing import Any

from dflash.decode.drafters.dflash import DRAFT_OPTIONS, DFlash
from dflash.decode.drafting.drafter import Drafter, Strategy
from dflash.decode.drafting.shapes.tree import BUDGET, Tree
from dflash.decode.registry import register
from dflash.model.loading.published_drafts import AT_HAND

_ABOUT = "Draft a tree of tokens with a DFlash, DFlash 2 or DSpark model: several candidates for each position."

register("ddtree", number="NODES", shape=Tree, default=BUDGET, takes=DRAFT_OPTIONS, about=_ABOUT)(DFlash)


def DDTree(draft: str | os.PathLike[str] | Drafter = AT_HAND, budget: int = BUDGET, **settings: Any) -> Strategy:  # noqa: N802
    """Return a strategy that drafts a tree of tokens with a draft model.

    Parameters
    ----------
    draft : str, path or Drafter
        A draft model as for `DFlash`, or any drafter whose shape can be chosen.
    budget : int
        Number of draft tokens.
    **settings
        Further settings of `DFlash`.

    References
    ----------
    DDTree, arXiv 2604.12989.
    """
    drafter = DFlash(draft, **settings) if isinstance(draft, str | os.PathLike) else draft
    return Strategy(drafter, Tree(budget))
