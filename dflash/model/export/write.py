"""Write a draft or a head as a folder of ``config.json`` and a safetensors file."""

import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dflash.errors import RequestError, Unsupported
from dflash.model.draft.files.folder import KINDS, LAYER
from dflash.model.draft.files.names import published
from dflash.model.draft.files.open_draft import PARTS, open_draft, settings_of
from dflash.model.draft.files.safetensors import SIZES, Entry, write_safetensors
from dflash.model.draft.files.source import Source
from dflash.model.eagle.files import is_eagle, open_eagle
from dflash.model.export.mtp import holds_mtp, mtp_of
from dflash.model.export.settings import Settings, of_draft, of_eagle, speculators_config
from dflash.model.gguf.file import GGUFFile
from dflash.model.gguf.keys import Keys
from dflash.model.loading.hub import resolve

LAYOUTS = ("z-lab", "specforge", "speculators")
"""Layouts of folders: of block drafts as their authors publish them, of EAGLE-3 heads of SpecForge, and of speculators."""

_DEPTH = 3
"""Draft tokens that a configuration of speculators names for a head: the default of that package."""

_CONTEXT = 40960
"""Longest text in tokens where the file does not say it: that of Qwen3."""

_KEPT = ("speculators_config", "speculators_version", "dtype", "torch_dtype", "num_target_layers")
"""Keys of a ``config.json`` that are copied."""


class Exported(NamedTuple):
    """A draft that was written.

    Parameters
    ----------
    folder : Path
        Folder of ``config.json`` and ``model.safetensors``.
    kind : str
        ``"dflash"``, ``"dflash2"``, ``"dspark"``, ``"eagle3"`` or ``"mtp"``.
    n_bytes : int
        Bytes of all tensors.
    """

    folder: Path
    kind: str
    n_bytes: int


def export_draft(
    draft: str | os.PathLike[str], folder: str | os.PathLike[str], layout: str = "speculators", target: str | None = None
) -> Exported:
    """Write a block draft, an EAGLE-3 head or an MTP head in the layout of another program.

    Tensors keep their bits and types. Reading the folder back gives the same draft, whatever its layout.

    Parameters
    ----------
    draft : str or path
        A draft as for `DFlash`, a head as for `Eagle3`, or a model or head as for `MTP`.
    folder : str or path
        Folder to write; it must not hold a model.
    layout : str
        ``"z-lab"`` for block drafts, ``"specforge"`` for EAGLE-3 heads, ``"speculators"`` for all.
    target : str, optional
        Repository of the target, for the configuration of speculators.

    Raises
    ------
    RequestError
        If there is no such layout, or the folder holds a model.
    Unsupported
        If the layout can't hold the draft, or a tensor is quantized.
    NotFound, FormatError
        If there is no draft, or it is damaged.
    """
    if layout not in LAYOUTS:
        raise RequestError(f"layout: {layout!r:.40} is not known; there are {', '.join(LAYOUTS)}")
    path, out = resolve(draft, folders=True), Path(folder)
    if (out / "config.json").exists() or any(out.glob("*.safetensors")):
        raise RequestError(f"folder: {out} holds a model already")
    settings, tensors = (_mtp if holds_mtp(path) else _draft)(path, layout, target)
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    write_safetensors(out / "model.safetensors", tensors, {"format": "pt"})
    kind = settings.get("speculators_model_type") or KINDS.get(settings["architectures"][0], "eagle3")
    return Exported(out, kind, sum(entry.data.nbytes for entry in tensors.values()))


def _mtp(path: Path, layout: str, target: str | None) -> tuple[Settings, dict[str, Entry]]:
    """Return the settings and tensors of an MTP head."""
    if layout != "speculators":
        raise Unsupported(f"export: the layout {layout!r} is not of MTP heads")
    settings, tensors = mtp_of(path)
    known = settings_of(path).get("speculators_config") if path.is_dir() or path.suffix in PARTS else None
    return settings | {"speculators_config": known or speculators_config("mtp", _DEPTH, target)}, tensors


def _draft(path: Path, layout: str, target: str | None) -> tuple[Settings, dict[str, Entry]]:
    """Return the settings and tensors of a block draft or an EAGLE-3 head."""
    nested, eagle, known = layout == "speculators", is_eagle(path), _known(path)
    context = known.get("max_position_embeddings") or _CONTEXT
    if layout == ("z-lab" if eagle else "specforge"):
        raise Unsupported(f"export: the layout {layout!r} is not of {'EAGLE-3 heads' if eagle else 'block drafts'}")
    if eagle:
        head, source = open_eagle(path)
        n_head = source.shapes["output.weight"][0] if source.has("output.weight") else head.n_vocab
        kind, n_draft, settings = "eagle3", _DEPTH, of_eagle(head, nested=nested, context=context, n_head=n_head)
    else:
        config, source = open_draft(path)
        kind, n_draft, settings = config.kind, config.max_draft, of_draft(config, nested=nested, context=context)
        if nested:
            settings["draft_vocab_size"] = source.shapes["d2t"][0] if source.has("d2t") else config.n_vocab
    tensors = {_name(name, layout): _stored(source, name) for name in source.shapes}
    n_vocab = settings.get(LAYER, settings)["vocab_size"]
    if source.has("d2t") and not source.has("t2d") and n_vocab:
        drafted = np.isin(np.arange(n_vocab), source.targets())
        tensors["t2d"] = Entry(drafted.shape, "BOOL", drafted.view(np.uint8))
    kept = {name: known[name] for name in _KEPT if name in known and (nested or not name.startswith("speculators"))}
    if nested and (target is not None or "speculators_config" not in kept):
        kept["speculators_config"] = speculators_config(kind, n_draft, target)
    return settings | kept, tensors


def _known(path: Path) -> Settings:
    """Return the settings of a file that its configuration does not hold."""
    if path.is_dir() or path.suffix in PARTS:
        settings = settings_of(path)
        return settings.get(LAYER, {}) | settings
    with GGUFFile.open(path) as file:
        context = Keys(file.metadata, Keys(file.metadata, "general").text("architecture")).integer("context_length", None)
    return {"max_position_embeddings": context}


def _name(name: str, layout: str) -> str:
    name = published(name)
    return name.replace("layers.0.", "midlayer.") if layout == "specforge" else name


def _stored(source: Source, name: str) -> Entry:
    """Return a tensor as a safetensors file holds it; the map of a draft vocabulary becomes offsets from the draft's ids."""
    entry = source.entry(name)
    if entry.type not in SIZES:
        raise Unsupported(f"export: tensor {name!r} is {entry.type}, safetensors can't hold it: take an unquantized file")
    if name == "d2t":
        offsets = source.targets().astype(np.int64) - np.arange(entry.shape[0])
        return Entry(entry.shape, "I64", offsets.view(np.uint8))
    return Entry(entry.shape, entry.type, entry.data.reshape(-1).view(np.uint8))
