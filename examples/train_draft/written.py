"""Sizes of a draft for a model, and strategies that use the files of a draft and a head."""

from pathlib import Path

import gguf

import dflash
from dflash import Strategy
from dflash.model.draft.config import DraftConfig
from dflash.model.eagle import EagleConfig

from .eagle import write_eagle
from .gguf_files import write_draft, write_mtp
from .networks import BlockDraftNet, EagleNet, MtpNet
from .training import PASSES, weights_of

NEAR = 8
"""Window of the first layer: with few keys, random attention already sees the last token, and training begins faster."""


def draft_config(lm: dflash.LM, *, n_layers: int = 2, block: int = 8, n_features: int = 3) -> DraftConfig:
    """Return sizes of a draft with heads of 64 elements that reads `n_features` layers of a model, the last one included."""
    of = lm.model.config
    kv_heads = max(of.width // 256, 1)
    heads, kv_heads = (of.heads, of.kv_heads) if of.head_size == 64 else (4 * kv_heads, kv_heads)
    whole, whole_block = (0,) * (n_layers - 1), (False,) * (n_layers - 1)
    layers = tuple(of.n_layers * share // (n_features + 1) - 1 for share in range(2, n_features + 2))
    return DraftConfig(
        kind="dflash", width=of.width, ffn=of.ffn or 2 * of.width, n_layers=n_layers, heads=heads, kv_heads=kv_heads,
        head_size=64, n_vocab=of.n_vocab, norm_eps=1e-6, rope_base=10_000.0, rope_scaling=None, block=block,
        mask=mask_token(lm), target_layer_ids=layers, windows=(NEAR, *whole), causal=(True, *whole_block),
    )  # fmt: skip


def eagle_config(lm: dflash.LM) -> EagleConfig:
    """Return sizes of an EAGLE-3 head that reads three layers of a model, the last one included."""
    of = draft_config(lm, n_features=3)
    return EagleConfig(
        width=of.width, target_width=of.width, ffn=of.ffn, heads=of.heads, kv_heads=of.kv_heads, head_size=of.head_size,
        head_norms=False, n_rot=of.head_size, rope_base=of.rope_base, rope_scaling=None, n_vocab=of.n_vocab,
        norm_eps=of.norm_eps, target_layer_ids=of.target_layer_ids, feature_norm="layers", normed_output=True,
    )  # fmt: skip


def mask_token(lm: dflash.LM) -> int:
    """Return an id that texts hardly have: the last control token, or the last row of the embedding."""
    types = lm.file.metadata.get("tokenizer.ggml.token_type", [])
    return max((i for i, kind in enumerate(types) if kind == gguf.TokenType.CONTROL), default=lm.model.n_vocab - 1)


def exported(lm: dflash.LM, net: BlockDraftNet | MtpNet | EagleNet, folder: Path, name: str, *, kind: str = "F16") -> Path:
    """Write the file of a draft or a head; the folder of an EAGLE-3 head, which is always in halves."""
    if isinstance(net, BlockDraftNet):
        return write_draft(folder / f"{name}-draft.gguf", net.config, weights_of(net), kind=kind)
    if isinstance(net, EagleNet):
        return write_eagle(net, folder / f"{name}-eagle", lm.model.config.context)
    return write_mtp(folder / f"{name}-head.gguf", lm.file.path, weights_of(net), kind=kind)


def written_chain(lm: dflash.LM, net: BlockDraftNet | MtpNet | EagleNet, folder: Path, name: str) -> tuple[Path, Strategy]:
    """Write the file of a draft or a head; return it, and a strategy with the longest chains that it was trained for."""
    path = exported(lm, net, folder, name)
    if isinstance(net, BlockDraftNet):
        return path, Strategy(dflash.DFlash(str(path)), dflash.Chain(net.config.max_draft))
    if isinstance(net, EagleNet):
        return path, Strategy(dflash.Eagle3(str(path)), dflash.Chain(PASSES))
    return path, Strategy(dflash.MTP(file=str(path)), dflash.Chain(PASSES))


def written(lm: dflash.LM, draft: BlockDraftNet, head: MtpNet, folder: Path, name: str) -> dict[str, Strategy]:
    """Write the files of a draft and a head; return strategies with them by name."""
    files = [str(exported(lm, net, folder, name)) for net in (draft, head)]
    return {
        f"{name} draft": Strategy(dflash.DFlash(draft=files[0]), dflash.Chain(draft.config.max_draft)),
        f"{name} head": Strategy(dflash.MTP(file=files[1]), dflash.Chain(2)),
    }
