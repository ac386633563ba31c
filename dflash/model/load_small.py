"""A small model of the same vocabulary, to guess what a large one will say."""

import os
from typing import Any

from dflash.errors import Unsupported
from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile
from dflash.model.hub import resolve
from dflash.model.load import Loaded, load_model

_TOKENS = "tokenizer.ggml.tokens"


class Small:
    """A model that goes with another.

    Attributes
    ----------
    model : Model or DeviceModel
    kind : str
        Models of one kind use the same kernels.
    """

    def __init__(self, loaded: Loaded) -> None:
        self.model, self.kind, self._file = loaded.model, loaded.kind, loaded.file

    def close(self) -> None:
        """Close its file, and what was loaded for it."""
        self.model.attachments.close()
        self._file.close()


def load_small(large: Any, name: str | os.PathLike[str], device: str | None = None) -> Small:
    """Load a model that reads and writes the tokens of another.

    Parameters
    ----------
    large : Model or DeviceModel
        The other; it tells how many texts there are and how long they get.
    name : str or path
        As for `load_model`.
    device : str, optional
        As for `load_model`; that of the other if None.

    Returns
    -------
    Small

    Raises
    ------
    Unsupported
        If its tokens are not those of the other.
    DFlashError
        What `load_model` raises.
    """
    path = resolve(name)
    file = GGUFFile.open(path)
    try:
        config = Config.from_gguf(file.metadata, file.tensors)
        _check(large, config, file.metadata.get(_TOKENS), str(name))
    finally:
        file.close()
    loaded = load_model(
        path,
        device=device or large.device,
        threads=large.threads,
        context=min(config.context, large.config.context),
        sequences=max(large.pools.slots - 1, 1),
        kv=large.pools.kv,
    )
    return Small(loaded)


def _check(large: Any, config: Config, tokens: Any, name: str) -> None:
    wanted = large.metadata.get(_TOKENS)
    if config.n_vocab < large.n_vocab or type(tokens) is not type(wanted) or tokens != wanted:
        n = [len(each) if isinstance(each, list) else 0 for each in (tokens, wanted)]
        raise Unsupported(
            f"has another vocabulary ({config.n_vocab} ids, {n[0]} tokens) than the model it should guess for "
            f"({large.n_vocab} ids, {n[1]} tokens)",
            path=name,
        )
