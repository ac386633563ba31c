"""Load a small model with the vocabulary of a large one, as a draft model for it."""

import os
from typing import TYPE_CHECKING

from dflash.errors import Unsupported
from dflash.kernels.gpu.device import gpu_name
from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile
from dflash.model.gguf.header import Value
from dflash.model.loading.hub import resolve
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import Loaded, load_model
from dflash.model.split.names import device_number

if TYPE_CHECKING:
    from dflash.model.cuda.model import DeviceModel
    from dflash.model.model import Model

_TOKENS = "tokenizer.ggml.tokens"


class Small:
    """A complete model that drafts for another one."""

    def __init__(self, loaded: Loaded) -> None:
        self.model, self.kind, self._file = loaded.model, loaded.kind, loaded.file

    def close(self) -> None:
        """Close the file and all attachments of the model."""
        self.model.attachments.close()
        self._file.close()


def load_small(large: "Model | DeviceModel", name: str | os.PathLike[str], device: str | None = None) -> Small:
    """Load a model that has the same tokens as another one.

    large: the target model; the small model gets its numbers of sequences and pending rows, its context and its type of KV
        cache.
    device: ``"cpu"``, or that of the target, which is the default.
    """
    if device is not None and device_number(device) is not None and device != _gpu(large):
        raise Unsupported(f"draft_device {device!r}: a small model runs on 'cuda', the GPU of its target, or on 'cpu'")
    path = resolve(name)
    file = GGUFFile.open(path)
    try:
        config = Config.from_gguf(file.metadata, file.tensors)
        _check(large, config, file.metadata.get(_TOKENS), str(name))
    finally:
        file.close()
    settings = LoadSettings(
        device=device or large.device,
        threads=large.threads,
        context=min(config.context, large.config.context),
        sequences=max(large.pools.slots - 1, 1),
        kv=large.pools.kv,
        pending=large.config.pending,
    )
    return Small(load_model(path, settings))


def _gpu(model: "Model | DeviceModel") -> str | None:
    """Return the name of the GPU of a model; None on the CPU."""
    if model.device == "cpu":
        return None
    return gpu_name(model.sampled_ids.device.id)


def _check(large: "Model | DeviceModel", config: Config, tokens: Value | None, name: str) -> None:
    wanted = large.metadata.get(_TOKENS)
    if config.n_vocab < large.n_vocab or type(tokens) is not type(wanted) or tokens != wanted:
        n = [len(each) if isinstance(each, list) else 0 for each in (tokens, wanted)]
        raise Unsupported(
            f"has another vocabulary ({config.n_vocab} ids, {n[0]} tokens) than its target "
            f"({large.n_vocab} ids, {n[1]} tokens)",
            path=name,
        )
