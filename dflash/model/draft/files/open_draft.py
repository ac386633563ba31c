"""Open the file of a draft model, of any kind."""

from pathlib import Path
from typing import Any

from dflash.errors import FormatError
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.files.folder import config_of as config_of_folder
from dflash.model.draft.files.gguf_dialects import DIALECTS
from dflash.model.draft.files.gguf_dialects import config_of as config_of_gguf
from dflash.model.draft.files.safetensors import read_object
from dflash.model.draft.files.source import Source
from dflash.model.gguf.file import GGUFFile
from dflash.model.gguf.keys import Keys

_CONFIG = "config.json"
PARTS = (".json", ".safetensors")
"""Ends of the names of files in a model folder."""


def is_draft(path: Path) -> bool:
    """Return True if a model is a draft: a folder, a file in one, or a GGUF file of a draft architecture."""
    if path.is_dir() or path.suffix in PARTS:
        return True
    with GGUFFile.open(path) as file:
        return Keys(file.metadata, "general").text("architecture", None) in DIALECTS


def open_draft(path: Path) -> tuple[DraftConfig, Source]:
    """Open a draft model and read its configuration; no weight is read."""
    if not (path.is_dir() or path.suffix in PARTS):
        with GGUFFile.open(path) as file:
            source = Source.of_gguf(file)
            return config_of_gguf(file.metadata, source.shapes), source
    settings, source = settings_of(path), Source.of_folder(path if path.is_dir() else path.parent)
    return config_of_folder(settings, source.shapes), source


def settings_of(path: Path) -> dict[str, Any]:
    """Return the configuration in a model folder."""
    folder = path if path.is_dir() else path.parent
    settings = folder / _CONFIG
    if not settings.exists():
        raise FormatError(f"the folder of a draft model must hold a {_CONFIG}", path=folder)
    return read_object(settings)
