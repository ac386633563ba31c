"""Describe the file of a draft model from its header alone."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

from dflash.model.draft import DraftConfig, open_draft
from dflash.model.draft.files.source import Source
from dflash.model.draft.state import DEFAULT_CONTEXT, places
from dflash.model.eagle.config import EagleConfig
from dflash.model.eagle.files import is_eagle, open_eagle

NAMES = {"dflash": "DFlash", "dflash2": "DFlash 2", "dspark": "DSpark"}

_DEFAULT_LAYERS = "the second, the middle one, the fourth from the end"


def draft_overview(path: Path) -> dict[str, Any]:
    """Describe a draft model or an EAGLE-3 head without reading a weight. Raises the errors of `open_draft`.

    Returns: ``draft``, ``quantization``, ``memory``: JSON values only, sizes in bytes.
    """
    source: Source
    if is_eagle(path):
        head, source = open_eagle(path)
        about, context = _head(head, source), {"kv_per_token": 4 * head.kv_heads * head.head_size}
    else:
        config, source = open_draft(path)
        about, context = _draft(config), {"context_per_sequence": _context(config)}
    counts, sizes = Counter(source.types.values()), Counter[str]()
    for name, kind in source.types.items():
        sizes[kind] += source.sizes[name]
    found = {
        "draft": {"file": str(path), **about, "parameters": sum(map(math.prod, source.shapes.values()))},
        "quantization": {kind: {"tensors": counts[kind], "bytes": size} for kind, size in sizes.most_common()},
        "memory": {"weights": sum(sizes.values()), **context},
    }
    source.close()
    return found


def _head(config: EagleConfig, source: Source) -> dict[str, Any]:
    return {
        "kind": "eagle3",
        "name": "EAGLE-3 head",
        "target_layer_ids": list(config.target_layer_ids) or _DEFAULT_LAYERS,
        "width": config.target_width,
        "heads": [config.heads, config.kv_heads, config.head_size],
        "rope_base": config.rope_base,
        "vocabulary": config.n_vocab,
        "draft_vocabulary": source.shapes["d2t"][0] if source.has("d2t") else config.n_vocab,
        "feature_norm": config.feature_norm,
        "normed_residual": config.normed_residual,
        "normed_output": config.normed_output,
    }


def _draft(config: DraftConfig) -> dict[str, Any]:
    about: dict[str, Any] = {
        "kind": config.kind,
        "name": NAMES[config.kind],
        "block": config.block,
        "draft_tokens": config.max_draft,
        "mask": config.mask,
        "target_layer_ids": list(config.target_layer_ids),
        "width": config.width,
        "layers": [
            {"window": window, "causal": causal} for window, causal in zip(config.windows, config.causal, strict=True)
        ],
        "heads": [config.heads, config.kv_heads, config.head_size],
        "rope_base": config.rope_base,
        "vocabulary": config.n_vocab,
    }
    if config.kind == "dflash2":
        about |= {"selector": {"rank": config.selector_rank, "candidates": config.selector_top}}
        about |= {"convolution": {"taps": config.conv_width, "group": config.conv_group}}
    if config.kind == "dspark":
        about |= {"markov": {"rank": config.markov_rank}, "confidence": config.has_confidence}
    return about


def _context(config: DraftConfig) -> int:
    return 4 * config.n_layers * places(config, DEFAULT_CONTEXT) * config.kv_heads * config.head_size
