"""Lines of a JSONL file, and errors that name them."""

import json
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

    Raises
    ------
    OSError
        If there is no such file.
    RequestError
        If a line is not a JSON object; the message names the line.
    """
    found = []
    for number, raw in enumerate(path.read_bytes().split(b"\n"), 1):
        if raw.strip():
            line = Line(path, number, {})
            with line.located():
                found.append(line._replace(row=_object(raw)))
    return found


def _object(raw: bytes) -> dict[str, Any]:
    try:
        row = json.loads(raw)
    except ValueError as error:
        raise RequestError(f"not valid JSON: {error}") from error
    if not isinstance(row, dict):
        raise RequestError(f"must be a JSON object, got {row!r:.60}")
    return row
