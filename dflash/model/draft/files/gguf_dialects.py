"""Configuration keys of GGUF draft files: llama.cpp's mainline format and the earlier formats of forks."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dflash.errors import FormatError, Unsupported
from dflash.model.config_sizes import MAX_BLOCKS, MAX_WIDTH, RopeScaling
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.files.names import FORKS, kind_of
from dflash.model.gguf.header import Value
from dflash.model.gguf.keys import Keys

MAX_HEADS, MAX_HEAD_SIZE, MAX_RANK, MAX_TOP, MAX_CONV = 4096, 1024, 1 << 16, 64, 16


class Dialect(NamedTuple):
    """Keys by which a kind of GGUF file describes the block.

    block, target_layer_ids: keys under the architecture.
    shift: offset of layer numbers in the file: the file stores layer i as ``i + shift``.
    masks: full keys that may hold the mask token; the first one present is used.
    """

    block: str
    target_layer_ids: str
    shift: int
    masks: tuple[str, ...]


def _fork(name: str) -> Dialect:
    masks = f"{name}.dflash.mask_token_id", "tokenizer.ggml.mask_token_id"
    return Dialect("dflash.block_size", "dflash.target_layer_ids", 0, masks)


DIALECTS = {
    "dflash": Dialect("block_size", "target_layers", 1, ("tokenizer.ggml.mask_token_id", "dflash.mask_token_id")),
    **{name: _fork(name) for name in FORKS},
}
"""Dialect by architecture. The mainline format counts inputs of layers, so that the output of layer 0 is 1."""


def config_of(metadata: Mapping[str, Value], shapes: Mapping[str, tuple[int, ...]]) -> DraftConfig:
    """Read the configuration of a draft model from the metadata of its file and the shapes of its canonical tensors."""
    name = Keys(metadata, "general").text("architecture")
    if name not in DIALECTS:
        raise Unsupported(f"architecture {name[:40]!r} is no draft model: those are {', '.join(DIALECTS)}")
    refuse_lilicorr(metadata)
    keys, dialect, kind = Keys(metadata, name), DIALECTS[name], kind_of(shapes)
    n_layers = keys.integer("block_count", high=MAX_BLOCKS)
    head_size = keys.integer("attention.key_length", high=MAX_HEAD_SIZE)
    if keys.integer("attention.value_length", head_size) != head_size:
        raise Unsupported("draft: keys and values of different sizes are not run")
    windows = _windows(keys, n_layers)
    scaling = RopeScaling.from_keys(keys)
    return DraftConfig(
        kind=kind,
        width=keys.integer("embedding_length", high=MAX_WIDTH),
        ffn=keys.integer("feed_forward_length", high=MAX_WIDTH),
        n_layers=n_layers,
        heads=keys.integer("attention.head_count", high=MAX_HEADS),
        kv_heads=keys.integer("attention.head_count_kv", high=MAX_HEADS),
        head_size=head_size,
        n_vocab=_vocabulary(metadata, keys),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon", low=0, high=1),
        rope_base=keys.number("rope.freq_base", low=RopeScaling.smallest_base(scaling), high=1e12),
        rope_scaling=scaling,
        block=keys.integer(dialect.block, high=1 << 16),
        mask=_mask(metadata, dialect),
        target_layer_ids=tuple(
            tap - dialect.shift for tap in keys.integers(dialect.target_layer_ids, low=dialect.shift, high=MAX_BLOCKS)
        ),
        windows=windows,
        causal=causality(kind, windows, keys.flag("attention.causal", default=False) or None),
        logit_scale=keys.number("logit_scale", 1.0, low=-1e6, high=1e6),
        logit_cap=keys.number("final_logit_softcapping", 0.0, low=0, high=1e9),
        embed_scale=keys.number("embedding_scale", 1.0, low=-1e6, high=1e6),
        **_extras(keys, kind, shapes),
    )


def causality(kind: str, windows: tuple[int, ...], given: bool | None) -> tuple[bool, ...]:
    """Return for each layer whether rows of the block attend only to themselves and earlier rows.

    given: value in the file, for all layers. If None, no layer of a DFlash 2 draft is causal; of other drafts, the layers
        with a window are.
    """
    if given is None:
        return tuple(kind != "dflash2" and window > 0 for window in windows)
    return (given,) * len(windows)


def refuse_lilicorr(settings: Mapping[str, object]) -> None:
    """Raise `Unsupported` for a LiLiCorr draft, which selects among its candidates by a transformer."""
    if any("lilicorr" in str(name).lower() for name in settings):
        raise Unsupported("LiLiCorr drafts are not run: dflash runs DFlash, DFlash 2 and DSpark")


def _extras(keys: Keys, kind: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return the settings that only some kinds of drafts have."""
    if kind == "dflash2":
        return {
            "conv_width": keys.integer("conv_kernel_size", high=MAX_CONV),
            "conv_group": keys.integer("conv_group_size", high=MAX_WIDTH),
            "selector_rank": keys.integer("selector_rank", high=MAX_RANK),
            "selector_top": keys.integer("selector_top_k", high=MAX_TOP),
        }
    if kind == "dspark":
        return {
            "markov_rank": shapes["markov_w1.weight"][-1],
            "from_anchor": keys.flag("sample_from_anchor", default=True),
            "has_confidence": keys.flag("has_confidence_head", default="conf_proj.weight" in shapes),
        }
    return {}


def _windows(keys: Keys, n_layers: int) -> tuple[int, ...]:
    window = keys.integer("attention.sliding_window", 0, low=0)
    name = "attention.sliding_window_pattern"
    if not isinstance(keys.value(name, True), np.ndarray):
        return (window if keys.flag(name, default=True) else 0,) * n_layers
    pattern = keys.per_block(name, n_layers, high=1)
    if any(pattern) and not window:
        raise FormatError(f"draft: layers have a sliding window ({name}), but 'attention.sliding_window' is missing")
    return tuple(window if slides else 0 for slides in pattern)


def _mask(metadata: Mapping[str, Value], dialect: Dialect) -> int:
    name = next((name for name in dialect.masks if name in metadata), dialect.masks[0])
    prefix, _, key = name.rpartition(".")
    return Keys(metadata, prefix).integer(key, low=0)


def _vocabulary(metadata: Mapping[str, Value], keys: Keys) -> int:
    tokens = metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, list) else keys.integer("vocab_size", 0)
