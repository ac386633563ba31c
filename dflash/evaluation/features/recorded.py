"""Files of recorded features: the token ids of one text, and hidden states of some layers, as safetensors."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.errors import FormatError, NotFound
from dflash.model.draft.files.safetensors import Entry, SafeTensors, write_safetensors

FORMAT = "dflash-features-1"

TYPES: dict[str, tuple[str, np.dtype[np.floating]]] = {"f16": ("F16", np.dtype("<f2")), "f32": ("F32", np.dtype("<f4"))}
"""Types of stored features, with their names in safetensors."""

_DTYPES = dict(TYPES.values())
_TOKENS = np.dtype("<i4")
_MOST = float(np.finfo(np.float16).max)
_HEADER, _ENTRY = 512, 160
"""Bytes that a header may take, without texts, and bytes of a tensor in it."""


class Recorded(NamedTuple):
    """A text with the features of a target.

    tokens: int32 (T,); Prompt and output.
    features: dict of int to float32 or float16 (T, D); Residual stream after a layer; layer L of a target with L layers is
        the output of its last norm. Read-only.
    settings: all that the record depends on beside the prompt, as JSON.
    """

    tokens: NDArray[np.int32]
    n_prompt: int
    features: Mapping[int, NDArray[np.floating]]
    name: str = ""
    category: str = ""
    settings: str = ""


def n_bytes(text: Recorded, n_tokens: int, n_layers: int, width: int, kind: str) -> int:
    """Return an upper bound of the size of a file; `n_tokens` are those of prompt and output."""
    header = _HEADER + n_layers * _ENTRY + len(json.dumps((text.name, text.category, text.settings)))
    return header + n_tokens * (4 + n_layers * width * TYPES[kind][1].itemsize)


def write(path: Path, record: Recorded, kind: str) -> None:
    """Write a file, whole or not at all. Values that float16 can't hold become its largest one."""
    name, dtype = TYPES[kind]
    arrays: dict[str, tuple[str, NDArray[np.number]]] = {"tokens": ("I32", record.tokens.astype(_TOKENS))}
    for layer, values in record.features.items():
        values = values.clip(-_MOST, _MOST) if kind == "f16" else values
        arrays[f"layer.{layer}"] = name, np.ascontiguousarray(values, dtype)
    texts = {"name": record.name, "category": record.category, "settings": record.settings}
    entries = {key: Entry(array.shape, stored, array.reshape(-1).view(np.uint8)) for key, (stored, array) in arrays.items()}
    write_safetensors(path, entries, {"format": FORMAT, "prompt": str(record.n_prompt), **texts})


def read(path: Path) -> Recorded:
    """Return the record in a file, memory-mapped."""
    file = SafeTensors.open(path)
    about = file.metadata if isinstance(file.metadata, dict) else {}
    if about.get("format") != FORMAT or "tokens" not in file.tensors or not str(about.get("prompt")).isdecimal():
        raise FormatError(f"holds no recorded features ({FORMAT})", path=path)
    tokens = file.tensors.pop("tokens")
    if tokens.type != "I32" or len(tokens.shape) != 1:
        raise FormatError(f"tensor tokens is {tokens.type} {tokens.shape}", path=path)
    features = {}
    for name, (shape, kind, data) in file.tensors.items():
        layer = name.removeprefix("layer.")
        if kind not in _DTYPES or shape[:1] != tokens.shape or len(shape) != 2 or not layer.isdecimal():
            raise FormatError(f"tensor {name} is {kind} {shape}, beside {tokens.shape} tokens", path=path)
        features[int(layer)] = data.view(_DTYPES[kind]).reshape(shape)
    texts = (str(about.get(name, "")) for name in ("name", "category", "settings"))
    return Recorded(tokens.data.view(_TOKENS), int(about["prompt"]), features, *texts)


def recorded(folder: str | os.PathLike[str]) -> list[Recorded]:
    """Return all texts that `capture` recorded in a folder, in their order; features are read from disk when used.

    Parameters
    ----------
    folder : str or path
        Folder of `capture`.

    Raises
    ------
    NotFound
        If the folder holds none.
    FormatError
        If a file is damaged.
    """
    paths = sorted(Path(folder).glob("*.safetensors"))
    if not paths:
        raise NotFound(f"{os.fspath(folder)}: holds no recorded features")
    return [read(path) for path in paths]
