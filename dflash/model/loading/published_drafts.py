"""Find the draft model of a target by itself: beside its file, or in a table of published drafts."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dflash.errors import NotFound, RequestError
from dflash.model.gguf.choose import choose_files, is_draft
from dflash.model.loading.hub import PACKAGED, origin_of

AUTO, AT_HAND = "auto", "at-hand"
"""Names of a draft model that is to be found: also on the hub, or only where that needs no download."""

PUBLISHED: Mapping[str, str] = {
    "dflash-demo": "demo-draft",
    "qwen3-4b": "hf:z-lab/Qwen3-4B-DFlash-b16",
    "qwen3-8b": "hf:z-lab/Qwen3-8B-DFlash-b16",
    "qwen3-coder-30b-a3b": "hf:z-lab/Qwen3-Coder-30B-A3B-DFlash",
    "qwen3-coder-next": "hf:z-lab/Qwen3-Coder-Next-DFlash",
    "qwen3.5-4b": "hf:z-lab/Qwen3.5-4B-DFlash",
    "qwen3.5-9b": "hf:z-lab/Qwen3.5-9B-DFlash",
    "qwen3.5-27b": "hf:z-lab/Qwen3.5-27B-DFlash",
    "qwen3.5-35b-a3b": "hf:z-lab/Qwen3.5-35B-A3B-DFlash",
    "qwen3.5-122b-a10b": "hf:z-lab/Qwen3.5-122B-A10B-DFlash",
    "qwen3.6-27b": "hf:z-lab/Qwen3.6-27B-DFlash",
    "qwen3.6-35b-a3b": "hf:z-lab/Qwen3.6-35B-A3B-DFlash",
}
"""Name of a target, in lower case with hyphens, to its draft model: those listed by DFlash's authors, and the demo's."""

OWN_TABLE = "DFLASH_DRAFTS"
"""Environment variable: a JSON file like `PUBLISHED`, whose entries come first."""


def draft_of(metadata: Mapping[str, Any], path: Path, *, at_hand: bool = False) -> str:
    """Return the name of the draft model of a target.

    A draft in the repository or folder of the target comes first, then the table.

    at_hand: whether drafts on the hub are left out, since a gigabyte should not be downloaded for a name.
    """
    names = list(_names(metadata, path))
    found = _beside(path, names) or _listed(names)
    if found is None:
        how = "" if at_hand else " auto"
        raise NotFound(
            f"draft{how}: no draft model is known for {names[0]!r}; give its file or repository, or decode without one "
            "(lookup, adaptive)"
        )
    if at_hand and found.startswith("hf:"):
        raise NotFound(f"draft: no draft model is beside {path.name}; auto is {found}, downloaded once")
    return found


def _listed(names: Iterable[str]) -> str | None:
    """Return the draft of the first table and name that have one."""
    for table in (_own_table(), PUBLISHED):
        for name in names:
            found = [key for key in table if re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", name)]
            if found:
                return table[max(found, key=len)]
    return None


def _names(metadata: Mapping[str, Any], path: Path) -> Iterator[str]:
    """Yield what the target may be called."""
    base, size = metadata.get("general.basename"), metadata.get("general.size_label")
    origin = origin_of(path)
    given = [metadata.get("general.name"), f"{base}-{size}" if base and size else base]
    given += [metadata.get("general.base_model.0.name"), origin and origin.repo.partition("/")[2], path.name]
    for name in given:
        if isinstance(name, str) and name:
            yield re.sub(r"[\s_]+", "-", name.strip().lower())


def _beside(path: Path, names: Iterable[str]) -> str | None:
    """Return a draft of the target's repository or folder; in a folder it must begin with the target's name."""
    origin = origin_of(path)
    if origin is not None:
        files = _drafts(origin.files)
        return f"hf:{origin.place}:{Path(choose_files(origin.repo, files, None, folders=True)[0]).name}" if files else None
    if path.name in PACKAGED.values():
        return None
    known = [key for key in {**PUBLISHED, **_own_table()} if any(name.startswith(key) for name in names)]
    files = [file for file in _drafts(each.name for each in path.parent.glob("*.gguf")) if file != path.name]
    files = [file for file in files if any(file.lower().replace("_", "-").startswith(key) for key in known)]
    return str(path.parent / choose_files(path.parent.name, files, None, folders=True)[0]) if files else None


def _drafts(files: Iterable[str]) -> list[str]:
    return [file for file in files if file.lower().endswith(".gguf") and is_draft(file) and "eagle" not in file.lower()]


def _own_table() -> dict[str, str]:
    name = os.environ.get(OWN_TABLE)
    if not name:
        return {}
    try:
        table = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"{OWN_TABLE}: {name} can't be read: {error}") from error
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise RequestError(f"{OWN_TABLE}: {name} must hold a JSON object of names of models to names of drafts")
    return {key.lower(): value for key, value in table.items()}
