"""Load a draft model by name and check that it fits its target."""

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.errors import RequestError, Unsupported
from dflash.kernels.kv_types import drafter_kv
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.files.names import check_tensors
from dflash.model.draft.files.open_draft import open_draft
from dflash.model.draft.files.source import Source
from dflash.model.draft.model import BlockDraft, Tables
from dflash.model.draft.state import DEFAULT_CONTEXT, places
from dflash.model.draft.vocabulary import Vocabulary, common, vocabulary
from dflash.model.loading.hub import resolve
from dflash.model.loading.published_drafts import AT_HAND, AUTO, draft_of
from dflash.model.loading.short_memory import memory_errors
from dflash.model.model import Model
from dflash.model.split.names import device_kind, device_number

if TYPE_CHECKING:
    from dflash.model.cuda.draft import DeviceBlockDraft
    from dflash.model.cuda.model import DeviceModel

log = logging.getLogger("dflash.draft")


def load_draft(
    name: str | os.PathLike[str],
    target: "Model | DeviceModel",
    *,
    device: str | None = None,
    sequences: int,
    context: int | None = None,
    causal: bool | None = None,
    trim_block: bool = False,
    min_confidence: float = 0.0,
    draft_vocab: int | None = None,
) -> "BlockDraft | DeviceBlockDraft":
    """Load the draft model of a target.

    name: ``demo-draft``; a GGUF file; a folder with ``config.json`` and safetensors files; ``hf:org/repo``, with ``:quant``
        appended for a GGUF file; ``auto``, see `draft_of`.
    device: ``"cpu"``; ``"cuda"``, the GPU of the target; or ``"cuda:1"``, a GPU by its CUDA device number. By default the
        target's device.
    context: number of last positions that layers without a window see; by default 4,096, or the target's context if less.
    causal: whether rows of a block attend only to themselves and earlier rows, in all layers; by default as in the file.
    trim_block, min_confidence: see `BlockDraft`; on a GPU, blocks are never trimmed, since up to 16 rows cost the same.
    draft_vocab: draft only from this many first tokens and the special tokens; see `vocabulary`. By default from all tokens.
        On a GPU, a request may choose one of the `common` subsets of a large vocabulary instead.
    """
    device = device or target.device
    kind, gpu = device_kind(device), device_number(device)
    if sequences < 1 or (context is not None and context < 1) or not 0 <= min_confidence <= 1:
        raise RequestError(
            f"draft: sequences {sequences} and context {context} must be at least 1, confidence {min_confidence} 0 to 1"
        )
    if kind is None:
        raise Unsupported(f"draft: device {device!r} must be cpu, cuda, or a GPU as cuda:1")
    if kind == "cuda" and target.device == "cpu":
        raise Unsupported(f"draft: device {device!r} needs a model on a GPU, this one runs on the CPU")
    path = draft_path(name, target)
    with memory_errors(name, "use another strategy"):
        config, source = open_draft(path)
        try:
            config = fitted(config, source, target)
            if causal is not None:
                config = replace(config, causal=(causal,) * config.n_layers)
            room, known = min(context or DEFAULT_CONTEXT, target.config.context), vocabulary(source, target, draft_vocab)
            if kind == "cuda" and target.device == "cuda":
                some = common(target) if draft_vocab is None and not known.own else ()
                settings: dict[str, Any] = {"sequences": sequences, "context": room, "min_confidence": min_confidence}
                return _on_gpu(config, source, target, known, gpu, common=some, **settings)
            tables = _tables(source, target, known)
            settings = {"slots": sequences, "size": places(config, room), "threads": target.threads}
            settings["kv"] = drafter_kv(target.pools.kv)
            return BlockDraft(config, source, tables, **settings, trim_block=trim_block, min_confidence=min_confidence)
        except BaseException:
            source.close()
            raise


def draft_path(name: str | os.PathLike[str], target: "Model | DeviceModel") -> Path:
    """Return the file of a draft model, or ``config.json`` of its folder; raises the errors of `draft_of` and `resolve`."""
    if os.fspath(name) in (AUTO, AT_HAND):
        weights = target.weights if target.device == "cpu" else target.weights.host
        name = draft_of(weights.metadata, weights.path, at_hand=os.fspath(name) == AT_HAND)
        log.info("draft model: %s", name)
    return resolve(name, folders=True)


def _on_gpu(
    config: DraftConfig, source: Source, target: "DeviceModel", known: Vocabulary, gpu: int | None, **settings: Any
) -> "DeviceBlockDraft":
    """Put a draft on the GPU of its target, or on another one."""
    from dflash.kernels.gpu.devices import check_number, number_of
    from dflash.model.cuda.draft import DeviceBlockDraft, OtherGpuDraft

    if gpu is None or gpu == number_of(target.sampled_ids):
        return DeviceBlockDraft(config, source, target, known, **settings)
    check_number(gpu, "draft: device")
    return OtherGpuDraft(config, source, target, known, gpu=gpu, **settings)


def fitted(config: DraftConfig, source: Source, target: "Model | DeviceModel") -> DraftConfig:
    """Check that a draft model belongs to a target.

    Returns: the configuration with the target's vocabulary size. For files of a kind known to hold a wrong rotation base,
        also with the target's rotation base.
    """
    of, name = target.config, f"the draft ({config.kind})"
    if config.width != of.width:
        raise Unsupported(f"{name} is for a model of width {config.width}, this one has {of.width}")
    if config.n_vocab not in {0, of.n_vocab, len(_tokens(target))}:
        raise Unsupported(f"{name} is for a vocabulary of {config.n_vocab} tokens, this model has {of.n_vocab}")
    if config.mask >= of.n_vocab:
        raise Unsupported(f"{name} has mask token {config.mask}, this model's ids are 0 to {of.n_vocab - 1}")
    if max(config.target_layer_ids) >= of.n_layers:
        raise Unsupported(f"{name} reads layer {max(config.target_layer_ids)}, this model has layers 0 to {of.n_layers - 1}")
    _same_words(source, target, name)
    check_tensors(config, source.shapes, of.n_vocab)
    if source.fork and config.rope_base != of.rope_base:
        log.warning(
            "the draft's rotation base is %g, the target's %g: such files often hold a wrong one, using the target's",
            config.rope_base,
            of.rope_base,
        )
        config = replace(config, rope_base=of.rope_base)
    # a window larger than the context has the same effect as one of its size, and would only take memory
    windows = tuple(min(window, of.context + config.block) for window in config.windows)
    return replace(config, n_vocab=of.n_vocab, windows=windows)


def _same_words(source: Source, target: "Model | DeviceModel", name: str) -> None:
    """Raise if texts of tokens differ between draft and target; compares about 64 tokens spread over the vocabulary."""
    mine, theirs = source.tokens, _tokens(target)
    n = min(len(mine), len(theirs))
    for token in range(0, n, max(1, n // 64)):
        if mine[token] != theirs[token]:
            raise Unsupported(
                f"{name} is for another vocabulary: its token {token} is {mine[token]!r:.40}, "
                f"this model's {theirs[token]!r:.40}"
            )


def _tokens(target: "Model | DeviceModel") -> list[str]:
    weights = target.weights if target.device == "cpu" else target.weights.host
    tokens = weights.metadata.get("tokenizer.ggml.tokens")
    return tokens if isinstance(tokens, list) else []


def _tables(source: Source, target: "Model | DeviceModel", known: Vocabulary) -> Tables:
    """Return embedding and LM head: the draft's own, or those of the target's file."""
    weights = target.weights if target.device == "cpu" else target.weights.host
    embedding = weights.matrix("token_embd.weight")
    output = embedding if target.config.tied else weights.matrix("output.weight")
    if source.has("token_embd.weight"):
        embedding = source.matrix("token_embd.weight")
    if source.has("output.weight"):
        output = source.matrix("output.weight")
    return Tables(embedding, output, target.config.n_vocab, known)
