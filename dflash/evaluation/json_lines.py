"""Lines of a JSONL file, and errors that name them."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dflash.errors import RequestError


class Line(NamedTuple):
    """An object of a JSONL file, and its place in the file."""

    path: Path
    number: int
    row: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of the line in tables."""
        return f"line {self.number}"

    @contextmanager
    def located(self) -> Iterator[None]:
        """Put the file and the line in front of a RequestError that is raised inside."""
        try:
            yield
        except RequestError as error:
            raise RequestError(f"{self.path}, line {self.number}: {error}") from error


def read_lines(path: Path) -> list[Line]:
    """Return the objects of a JSONL file without its empty lines.

    A file whose first line is no whole object is read as JSON over several lines: objects one after the other, such as one
    that was printed with indentation, or an array of objects. `Line.number` is the line where an object begins.

    Raises OSError if there is no such file.
    Raises RequestError if a line is not a JSON object; the message names the line.
    """
    data = path.read_bytes()
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
            values = value if isinstance(value, list) and value else [value]
            found += [Line(path, number, _object(each)) for each in values]
        number += text.count("\n", at, end)
        at = end
    return found


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


def _object(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise RequestError(f"must be a JSON object, got {row!r:.60}")
    return row
