"""Lines of a JSONL file, and errors that name them."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dflash.errors import NotFound, RequestError


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


def read_lines(name: str | os.PathLike[str]) -> Iterator[Line]:
    """Yield the objects of a JSONL file; empty lines are skipped.

    Raises
    ------
    NotFound
        If there is no such file.
    RequestError
        If a line is not a JSON object; the message names the line.
    """
    path = Path(name)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NotFound(f"session {os.fspath(name)!r}: {error.strerror}") from error
    for number, raw in enumerate(data.split(b"\n"), 1):
        if not raw.strip():
            continue
        try:
            row = json.loads(raw)
        except ValueError as error:
            raise RequestError(f"{path}, line {number}: not valid JSON: {error}") from error
        if not isinstance(row, dict):
            raise RequestError(f"{path}, line {number}: must be a JSON object, got {row!r:.60}")
        yield Line(path, number, row)
