"""Objects of JSONL, JSON and Parquet files, and errors that name their place."""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dflash.distribution import needed
from dflash.errors import NotFound, RequestError
from dflash.json_types import JsonObject


def read_value(path: Path, parse: Callable[[str], Any] = json.loads, kind: str = "JSON", *, name: str = "") -> Any:
    """Return the value of a text file; errors name it. Raises NotFound, or RequestError if `parse` finds no valid `kind`."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotFound(f"{name or path}: {error.strerror}") from error
    except ValueError as error:
        raise RequestError(f"{name or path}: not valid {kind}: {error}") from error


class Line(NamedTuple):
    """An object of a file, and its place.

    number: line where the object begins; 0 in a file without lines.
    item: place in an array or a table, counted from 1; 0 if the object is in none.
    """

    path: Path
    number: int
    row: JsonObject
    item: int = 0

    @property
    def name(self) -> str:
        """Name of the line in tables."""
        return f"line {self.number}"

    @contextmanager
    def located(self) -> Iterator[None]:
        """Put the file and the object's place in front of a RequestError that is raised inside."""
        try:
            yield
        except RequestError as error:
            places = [f"line {self.number}"] * bool(self.number) + [f"item {self.item}"] * bool(self.item)
            raise RequestError(f"{', '.join([str(self.path), *places])}: {error}") from error


def read_lines(path: Path) -> list[Line]:
    """Return the objects of a JSONL file without its empty lines; those of a ``.gz`` file are unpacked first.

    A ``.parquet`` file gives its rows. A file whose first line is no whole object is read as JSON over several lines:
    objects one after the other, such as one that was printed with indentation, or an array. `Line.number` is the line
    where an object begins.
    """
    if path.suffix == ".parquet":
        return [Line(path, 0, row, item) for item, row in enumerate(_table(path), 1)]
    data = path.read_bytes()
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise RequestError(f"{path}: not a valid gzip file: {error}") from error
    found: list[Line] = []
    for number, raw in enumerate(data.split(b"\n"), 1):
        if raw.strip():
            line = Line(path, number, {})
            if not found and not _is_object(raw):
                return _over_lines(path, data)
            with line.located():
                found.append(line._replace(row=_object(_parsed(raw))))
    return found


def _over_lines(path: Path, data: bytes) -> list[Line]:
    """Return the objects of a file that stand over several lines."""
    found: list[Line] = []
    with Line(path, 1, {}).located():
        text = _decoded(data)
    decoder, at, number = json.JSONDecoder(), 0, 1
    while at < len(text):
        start = _BLANK.match(text, at)
        assert start is not None, "matches everywhere"
        number += text.count("\n", at, start.end())
        at = start.end()
        if at == len(text):
            break
        try:
            value, end = decoder.raw_decode(text, at)
        except ValueError as error:
            where = number + text.count("\n", at, getattr(error, "pos", at))
            raise RequestError(f"{path}, line {where}: not valid JSON: {getattr(error, 'msg', error)}") from error
        with Line(path, number, {}).located():
            several = isinstance(value, list) and bool(value)
            for item, each in enumerate(value if several else [value], 1):
                found.append(Line(path, number, _object(each), item if several else 0))
        number += text.count("\n", at, end)
        at = end
    return found


def _table(path: Path) -> list[JsonObject]:
    """Return the rows of a Parquet file."""
    with needed(f"{path}: reading Parquet", "parquet"):
        from pyarrow import ArrowInvalid, parquet
    path.open("rb").close()  # a missing file is an OSError with its reason
    try:
        rows: list[JsonObject] = parquet.read_table(path).to_pylist()
    except ArrowInvalid as error:
        raise RequestError(f"{path}: not a valid Parquet file: {error}") from error
    return rows


_BLANK = re.compile(r"\s*+")


def _is_object(raw: bytes) -> bool:
    try:
        return isinstance(json.loads(raw), dict)
    except ValueError:
        return False


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(f"not valid JSON: {error}") from error


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError as error:
        raise RequestError(f"not valid JSON: {error}") from error


def _object(row: object) -> JsonObject:
    if not isinstance(row, dict):
        raise RequestError(f"must be a JSON object, got {row!r:.60}")
    return row
