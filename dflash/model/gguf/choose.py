"""Choose the GGUF files of one model from those of a repository."""

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from dflash.errors import NotFound
from dflash.model.gguf.file import part_names

PREFERRED = ("Q4_K_M", "Q4_K_XL", "Q4_K_S", "Q5_K_M", "IQ4_XS", "Q4_0", "Q6_K", "Q8_0", "BF16", "F16")
"""Quantizations in the order of preference when none is requested."""

_NO_MODEL = re.compile(r"mmproj|imatrix", re.IGNORECASE)
_MTP = re.compile(r"(?:^|/)mtp[-._]", re.IGNORECASE)
_DRAFT = re.compile(
    r"(?:^|[-._/])(?:(?:dflash|dspark|eagle)[-._]?\d*|draft(?:er|[-._]?model)?|speculator|assistant)(?:$|[-._/])",
    re.IGNORECASE,
)
"""Names of draft models that are published beside the model that they draft for."""

_QUANT = re.compile(r"(?:UD-)?(?:I?Q\d\w*|TQ\d_\d|[MN][XV]FP4\w*|BF16|F16|F32)$", re.IGNORECASE)
_WEIGHTS = re.compile(r"[^/]+\.safetensors(?:\.index\.json)?")
_PART = re.compile(r"-\d{5}-of-\d{5}$")


def choose_files(repo: str, files: Iterable[str], quant: str | None, *, folders: bool = False) -> list[str]:
    """Return the files of one model: a single file, or all parts of a split model.

    quant: name of a quantization or of a file, in upper or lower case. By default the first of `PREFERRED` that exists.
    folders: true for a draft model: prefer the files of one, and return ``config.json`` and the safetensors files beside it
        if there is no GGUF file. Otherwise draft models are chosen only by their names, or if there is nothing else.
    """
    files = set(files)
    models = {names[0]: names for names in map(part_names, sorted(files)) if names[0].lower().endswith(".gguf")}
    named = [model for model in models if quant and quant.lower() == PurePosixPath(model).name.lower()]
    proper = [model for model in models if not _NO_MODEL.search(_stem(model))]
    usual = [model for model in proper if is_draft(model) == folders and not _MTP.search(model)]
    proper = usual or proper
    if folders and not proper and not quant and "config.json" in files:
        return ["config.json", *sorted(file for file in files if _WEIGHTS.fullmatch(file))]
    if not proper and not named:
        raise NotFound(f"{repo}: holds no GGUF model")
    matching = named or _of_quant(proper, quant)
    if not matching:
        there = ", ".join(sorted({_label(model) for model in proper}))
        raise NotFound(f"{repo}: has no {quant}, there is {there}")
    names = models[min(matching, key=lambda model: (len(model), model))]
    missing = [name for name in names if name not in files]
    if missing:
        raise NotFound(f"{repo}: {len(missing)} of {len(names)} parts are missing, the first is {missing[0]}")
    return names


def is_draft(model: str) -> bool:
    """Return True if the name of a GGUF file is that of a draft model."""
    return bool(_DRAFT.search(_path(model)))


def _of_quant(models: list[str], quant: str | None) -> list[str]:
    if quant:
        return [model for model in models if _is_quant(model, quant)]
    preferred = ([model for model in models if _is_quant(model, wanted)] for wanted in PREFERRED)
    return next(filter(None, preferred), models)


def _is_quant(model: str, quant: str) -> bool:
    folders = [folder.lower() for folder in PurePosixPath(model).parts[:-1]]
    return quant.lower() in folders or bool(re.search(rf"(^|[-._]){re.escape(quant)}$", _stem(model), re.IGNORECASE))


def _stem(model: str) -> str:
    return _PART.sub("", PurePosixPath(model).name[: -len(".gguf")])


def _path(model: str) -> str:
    return str(PurePosixPath(model).parent / _stem(model))


def _label(model: str) -> str:
    quant = _QUANT.search(_stem(model))
    return quant[0] if quant else PurePosixPath(model).name
