"""Draft with an EAGLE-3 head of the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash.decode.drafters.mtp import DRAFT_OPTIONS, HeadDrafter
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.drafting.shapes.tree import BUDGET
from dflash.decode.registry import register
from dflash.decode.settings import spelled
from dflash.model.eagle.load import load_eagle
from dflash.model.loading.target import loaded_model

if TYPE_CHECKING:
    from dflash.model.cuda.heads import DeviceEagleHead
    from dflash.model.eagle.head import EagleHead
    from dflash.model.protocols.target import TargetModel

_NEEDS = {"takes": DRAFT_OPTIONS, "needs_draft": "the folder of an EAGLE-3 head"}
_TREE = "Draft a tree of tokens with an EAGLE-3 head: several candidates for each position."


@register("eagle3-tree", number="NODES", shape=Tree, default=BUDGET, about=_TREE, **_NEEDS)
@register("eagle3", number="DEPTH", shape=Chain, **_NEEDS)
@dataclass(frozen=True, repr=False)
class Eagle3(HeadDrafter):
    """Draft with an EAGLE-3 head, one pass for each draft token.

    In a tree, the head continues from the likeliest token of each position.

    Parameters
    ----------
    file : str
        A folder with ``config.json`` and safetensors files, as SpecForge and speculators write them, or ``hf:org/repo``. The
        head must have been trained for the target.
    draft_vocab : int, optional
        Size of the draft vocabulary, as for `DFlash`, for a head that has no vocabulary of its own.

    References
    ----------
    EAGLE-3, arXiv 2503.01840.
    """

    file: str
    draft_vocab: int | None = None
    __repr__ = spelled

    def load(self, model: TargetModel) -> EagleHead | DeviceEagleHead:
        """Load the head."""
        return load_eagle(loaded_model(model), self.file, draft_vocab=self.draft_vocab)
