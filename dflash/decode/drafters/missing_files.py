"""Strategies for which a model has no file: neither a layer of its own nor a draft model that is known."""

from dflash.decode.registry import DRAFTERS
from dflash.errors import NotFound
from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile
from dflash.model.loading.published_drafts import draft_of

NO_DRAFT, NO_LAYER = "no draft model is beside this model", "the model has no MTP layer"


def known_draft(file: GGUFFile, *, at_hand: bool = False) -> str | None:
    """Return the draft model that ``auto`` chooses, or the one that needs no download; None if there is none."""
    try:
        return draft_of(file.metadata, file.path, at_hand=at_hand)
    except NotFound:
        return None


def strategies_without_files(file: GGUFFile) -> dict[str, str]:
    """Return what is missing, by the word of each strategy that a model can't run without a file given by the user."""
    missing = {}
    has_draft = known_draft(file, at_hand=True) is not None
    has_layer = Config.from_gguf(file.metadata, file.tensors).n_mtp > 0
    for entry in DRAFTERS.values():
        if "draft" not in entry.takes or entry.brackets != "never":
            continue
        if entry.spare_draft and not has_layer:
            missing[entry.word] = NO_LAYER
        elif not entry.spare_draft and (entry.needs_draft or not has_draft):
            missing[entry.word] = entry.needs_draft or NO_DRAFT
    return missing
