"""Records of a study: one JSON file for each cell."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dflash.decode.drafters import Strategy
from dflash.decode.drafting.drafter import Drafter
from dflash.errors import NotFound, RequestError
from dflash.evaluation.environment import sha256
from dflash.evaluation.json_lines import read_value
from dflash.evaluation.study.grid import fingerprint
from dflash.evaluation.tables import Values
from dflash.model.draft.load import draft_path
from dflash.model.loading.target import loaded_model

if TYPE_CHECKING:
    from dflash.lm import LM

Record = Values
"""JSON values: ``study`` (fingerprint of all that the cells share), ``cell``, ``setup``, ``requests``, ``measures``."""

FORMAT = "dflash-study-1"


def strategy_setup(lm: "LM", strategy: Strategy) -> Values:
    """Return a strategy with what its output and speed depend on."""
    drafts = {path.name: sha256(path) for source in _sources(strategy.drafter) for path in _files(lm, source)}
    return {
        "expression": repr(strategy),
        "shape": repr(strategy.shape),
        "verifier": repr(strategy.verifier),
        "guarantee": strategy.verifier.guarantee,
        "warning": strategy.verifier.warning,
        "drafts": drafts,
        "code": dict(_code(strategy)),
    }


def _code(*parts: object) -> Iterator[tuple[str, str]]:
    """Yield module and SHA-256 of the file of each class of these; the commit knows no files that are not in git."""
    for part in parts:
        if isinstance(part, Strategy):
            yield from _code(part.drafter, part.shape, part.verifier)
        yield from _code(*getattr(part, "parts", ()))
        name = type(part).__module__
        path = getattr(sys.modules.get(name), "__file__", None)
        if path is not None:
            yield name, sha256(Path(path))


def _sources(drafter: Drafter) -> list[str]:
    own = getattr(drafter, "source", None)
    return [*([] if own is None else [own]), *(source for part in drafter.parts for source in _sources(part))]


def _files(lm: "LM", source: str) -> list[Path]:
    path = draft_path(source, loaded_model(lm.model))
    return [path, *sorted(path.parent.glob("*.safetensors"))] if path.name == "config.json" else [path]


def path_of(folder: Path, cell: Values) -> Path:
    """Return the file of a cell; that of other code is the same, so that it is noticed."""
    return folder / f"{fingerprint({name: value for name, value in cell.items() if name != 'code'})}.json"


def write(path: Path, record: Record) -> None:
    """Write a record, whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def read(path: Path) -> Record:
    """Return the record of a file."""
    record = read_value(path)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise RequestError(f"{path}: is no record of a study ({FORMAT})")
    return record


def read_all(path: Path) -> list[Record]:
    """Return the records of a folder in the order in which they were measured, or that of a file."""
    if not path.is_dir():
        return [read(path)]
    records = [read(each) for each in path.glob("*.json")]
    if not records:
        raise NotFound(f"{path}: holds no records of a study")
    return sorted(records, key=lambda record: record["number"])
