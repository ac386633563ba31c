"""Load an EAGLE-3 head and check that it fits its target."""

import os
from typing import TYPE_CHECKING

from dflash.errors import NotFound, Unsupported
from dflash.model.draft.files.source import Source
from dflash.model.draft.vocabulary import common, vocabulary
from dflash.model.eagle.config import EagleConfig
from dflash.model.eagle.files import check_tensors, open_eagle
from dflash.model.eagle.head import EagleHead
from dflash.model.loading.hub import resolve
from dflash.model.loading.published_drafts import AT_HAND, AUTO
from dflash.model.loading.short_memory import memory_errors

if TYPE_CHECKING:
    from dflash.model.cuda.heads import DeviceEagleHead
    from dflash.model.cuda.model import DeviceModel
    from dflash.model.model import Model


def load_eagle(
    model: "Model | DeviceModel", name: str | os.PathLike[str], *, draft_vocab: int | None = None
) -> "EagleHead | DeviceEagleHead":
    """Load the EAGLE-3 head of a model. model: the target, whose embedding the head uses unless it has its own."""
    if os.fspath(name) in (AUTO, AT_HAND):
        raise NotFound("draft auto: only block drafts are found by themselves; name the folder of the EAGLE-3 head")
    path = resolve(name, folders=True)
    with memory_errors(name, "use another strategy"):
        config, source = open_eagle(path)
        try:
            config = _fitted(config, source, model)
            known = vocabulary(source, model, draft_vocab)
            if model.device == "cuda":
                from dflash.model.cuda.heads import DeviceEagleHead

                some = common(model) if draft_vocab is None and not known.own else ()
                return DeviceEagleHead(model, config, source, known=known, common=some)
            embedding = source.matrix("token_embd.weight") if source.has("token_embd.weight") else model.embedding
            output = source.matrix("output.weight") if source.has("output.weight") else model.output
            return EagleHead(model, config, source, embedding, output, known=known)
        except BaseException:
            source.close()
            raise


def _fitted(config: EagleConfig, source: Source, model: "Model | DeviceModel") -> EagleConfig:
    """Return the configuration for a target, or raise `Unsupported` if the head is for another one."""
    of = model.config
    if config.target_width != of.width:
        raise Unsupported(f"the EAGLE-3 head is for a model of width {config.target_width}, this one has {of.width}")
    tokens = model.metadata.get("tokenizer.ggml.tokens")
    n_tokens = len(tokens) if isinstance(tokens, list) else of.n_vocab
    if config.n_vocab not in {0, of.n_vocab, n_tokens}:
        raise Unsupported(
            f"the EAGLE-3 head is for a vocabulary of {config.n_vocab} tokens, this model has {of.n_vocab} ids"
        )
    own = [name for name in ("token_embd.weight", "output.weight") if source.has(name)]
    if config.width != of.width and len(own) < 2:
        raise Unsupported(f"the EAGLE-3 head of width {config.width} has no embedding and LM head of that width")
    if of.blocks.scaled_embedding and "token_embd.weight" not in own:
        raise Unsupported(f"the EAGLE-3 head has no embedding, and that of {of.architecture} models is scaled")
    config.refuse_sizes(model.device)
    config = config.fitted(of.n_layers, of.n_vocab)
    check_tensors(config, source.shapes)
    return config
