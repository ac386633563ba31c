"""Write an EAGLE-3 head as speculators does."""

import json
from pathlib import Path

import numpy as np

from dflash.model.draft.files.names import published
from dflash.model.draft.files.safetensors import Entry, write_safetensors
from dflash.model.export.settings import of_eagle

from .networks import EagleNet
from .training import weights_of


def write_eagle(net: EagleNet, folder: Path, context: int) -> Path:
    """Write a head that uses the embedding and the LM head of its target, as float16; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = of_eagle(net.config, nested=True, context=context, n_head=net.config.n_vocab)
    (folder / "config.json").write_text(json.dumps(settings, indent=2))
    halves = {published(name): value.astype(np.float16) for name, value in weights_of(net).items()}
    entries = {name: Entry(value.shape, "F16", value.reshape(-1).view(np.uint8)) for name, value in halves.items()}
    write_safetensors(folder / "model.safetensors", entries, {"format": "pt"})
    return folder
