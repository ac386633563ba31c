"""Draft models that propose a block of tokens per pass from hidden states of the target: DFlash, DFlash 2, DSpark."""

from dflash.model.draft.config import DraftConfig
from dflash.model.draft.files.open_draft import is_draft, open_draft
from dflash.model.draft.load import load_draft
from dflash.model.draft.model import BlockDraft
from dflash.model.draft.request import DraftRequest
from dflash.model.draft.state import DraftSnapshot, DraftState

__all__ = [
    "BlockDraft",
    "DraftConfig",
    "DraftRequest",
    "DraftSnapshot",
    "DraftState",
    "is_draft",
    "load_draft",
    "open_draft",
]
