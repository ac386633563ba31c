"""Sizes of a small draft for a model, and strategies that use the files of a draft and a head."""

from pathlib import Path

import dflash
from dflash import Strategy
from dflash.model.draft.config import DraftConfig

from .gguf_files import write_draft, write_mtp
from .networks import BlockDraftNet, MtpNet
from .training import weights_of

NEAR = 8
"""Window of the first layer: with few keys, random attention already sees the last token, and training begins faster."""


def draft_config(lm: dflash.LM, *, n_layers: int = 2, block: int = 8) -> DraftConfig:
    """Return sizes of a small draft that reads three layers of a model, the last one included."""
    of, heads = lm.model.config, 4
    whole, whole_block = (0,) * (n_layers - 1), (False,) * (n_layers - 1)
    layers = tuple(of.n_layers * share // 4 - 1 for share in (2, 3, 4))
    return DraftConfig(
        kind="dflash", width=of.width, ffn=2 * of.width, n_layers=n_layers, heads=heads, kv_heads=2, head_size=64,
        n_vocab=of.n_vocab, norm_eps=1e-6, rope_base=10_000.0, rope_scaling=None, block=block, mask=mask_token(lm),
        target_layer_ids=layers, windows=(NEAR, *whole), causal=(True, *whole_block),
    )  # fmt: skip


def mask_token(lm: dflash.LM) -> int:
    """Return an id that no text has: the last row of the embedding."""
    return lm.model.n_vocab - 1


def written(lm: dflash.LM, draft: BlockDraftNet, head: MtpNet, folder: Path, name: str) -> dict[str, Strategy]:
    """Write the files of a draft and a head; return strategies with them by name."""
    draft_file = write_draft(folder / f"{name}-draft.gguf", draft.config, weights_of(draft))
    head_file = write_mtp(folder / f"{name}-mtp.gguf", lm.file.path, weights_of(head))
    return {
        f"{name} draft": Strategy(dflash.DFlash(draft=str(draft_file)), dflash.Chain(draft.config.max_draft)),
        f"{name} head": Strategy(dflash.MTP(file=str(head_file)), dflash.Chain(2)),
    }
