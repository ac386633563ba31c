"""Files of traces: lengths, shared prefixes and pauses of an agent's requests, without their text."""

import json
import lzma
import os
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from dflash.errors import NotFound, RequestError
from dflash.json_types import JsonMapping

ENDS = ".json", ".json.xz"
"""Ends of the names of trace files in a folder."""


class TracedRequest(NamedTuple):
    """Shape of one request.

    blocks: ids of the prompt's whole blocks; equal ids stand for equal text.
    think: seconds that the client pauses before the request.
    extends: index of the earlier request whose prompt this one continues, the longest such; None if there is none.
    """

    n_prompt: int
    n_output: int
    blocks: tuple[int, ...]
    think: float
    extends: int | None = None


class AgentTrace(NamedTuple):
    """Shapes of the requests of one session, in order.

    is_shared: ids of blocks mean the same text in all traces, not in this one alone.
    """

    name: str
    block_size: int
    requests: tuple[TracedRequest, ...]
    is_shared: bool = False

    def scaled(self, by: int) -> "AgentTrace":
        """Return the trace with all lengths divided by a number, so that small models and machines can replay its shape."""
        if by < 1 or self.block_size % by:
            fits = ", ".join(str(n) for n in range(1, self.block_size + 1) if self.block_size % n == 0)
            raise RequestError(f"scale: must divide the block size of {self.name}: {fits}; got {by}")
        requests = (
            one._replace(n_prompt=max(one.n_prompt // by, 1), n_output=max(round(one.n_output / by), 1))
            for one in self.requests
        )
        return self._replace(block_size=self.block_size // by, requests=tuple(requests))


def load_traces(path: str | os.PathLike[str]) -> list[AgentTrace]:
    """Read traces in the layout of kv-cache-tester, which AIPerf calls ``weka_trace``.

    path: a file of one trace, ``.json`` or ``.json.xz``, or a folder of them, which are read in the order of their names.
    """
    path = Path(path)
    try:
        files = [path]
        if path.is_dir():
            files = sorted(each for each in path.iterdir() if each.name.endswith(ENDS))
            if not files:
                raise NotFound(f"traces {os.fspath(path)!r}: the folder has no {' or '.join(ENDS)}")
        return [_trace(file, file.read_bytes()) for file in files]
    except OSError as error:
        if isinstance(error, NotFound):
            raise
        raise NotFound(f"traces {os.fspath(path)!r}: {error.strerror}") from error


def _trace(path: Path, data: bytes) -> AgentTrace:
    try:
        row = json.loads(lzma.decompress(data) if path.name.endswith(".xz") else data)
    except (ValueError, lzma.LZMAError) as error:
        raise RequestError(f"{path}: is no JSON: {error}") from error
    fields = _Fields(path, "", row)
    name, block_size = fields.text("id"), fields.whole("block_size", 1)
    scope = fields.text("hash_id_scope", "local")
    if scope not in ("local", "global"):
        raise fields.wrong("hash_id_scope", "must be local or global", scope)
    found, ended = list[TracedRequest](), 0.0
    for each in _flat(fields):
        began, think = each.seconds("t") or 0.0, each.seconds("think_time")
        if think is None:
            think = max(began - ended, 0.0)
        ended = began + (each.seconds("api_time") or 0.0)
        found.append(_request(each, block_size, think, found))
    if not found:
        raise fields.wrong("requests", "must hold at least one request", [])
    return AgentTrace(name, block_size, tuple(found), scope == "global")


class _Fields:
    """Fields of an object of a file, and errors that name them."""

    def __init__(self, path: Path, place: str, row: object) -> None:
        self._path, self._place = path, place
        if not isinstance(row, dict):
            raise RequestError(f"{path}: {place.rstrip('.') or 'the file'} must be a JSON object, got {row!r:.40}")
        self._row: JsonMapping = row

    def wrong(self, name: str, wanted: str, got: object) -> RequestError:
        return RequestError(f"{self._path}: {self._place}{name}: {wanted}, got {got!r:.40}")

    def text(self, name: str, default: str | None = None) -> str:
        value = self._row.get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "must be a text", value)
        return value

    def whole(self, name: str, least: int) -> int:
        value = self._row.get(name)
        if type(value) is not int or value < least:
            raise self.wrong(name, f"must be a whole number of at least {least}", value)
        return value

    def seconds(self, name: str) -> float | None:
        value = self._row.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
            raise self.wrong(name, "must be a number of seconds", value)
        return max(float(value), 0.0)

    def ids(self, name: str) -> tuple[int, ...]:
        value = self._row.get(name)
        if not isinstance(value, list) or not all(type(each) is int for each in value):
            raise self.wrong(name, "must be an array of whole numbers", value)
        return tuple(value)

    def objects(self, name: str) -> list["_Fields"]:
        value = self._row.get(name)
        if not isinstance(value, list):
            raise self.wrong(name, "must be an array", value)
        return [_Fields(self._path, f"{self._place}{name}[{i}].", each) for i, each in enumerate(value)]


def _flat(fields: _Fields) -> list[_Fields]:
    """Return the requests of a trace, with those of subagents in their place."""
    found = []
    for each in fields.objects("requests"):
        found += each.objects("requests") if each.text("type", "n") == "subagent" else [each]
    return found


def _request(fields: _Fields, block_size: int, think: float, earlier: Sequence[TracedRequest]) -> TracedRequest:
    n_prompt, n_output, blocks = fields.whole("in", 1), max(fields.whole("out", 0), 1), fields.ids("hash_ids")
    whole = n_prompt // block_size
    if not whole <= len(blocks) <= -(-n_prompt // block_size):
        raise fields.wrong("hash_ids", f"must have {whole} ids, one for each block of in", f"{len(blocks)} ids")
    made = TracedRequest(n_prompt, n_output, blocks[:whole], think)
    return made._replace(extends=_extended(made, earlier))


def _extended(request: TracedRequest, earlier: Sequence[TracedRequest]) -> int | None:
    """Return the index of the request with the longest prompt that is the beginning of this one's, the latest of several."""
    order = sorted(range(len(earlier)), key=lambda i: (len(earlier[i].blocks), earlier[i].n_prompt, i), reverse=True)
    for i in order:
        blocks = earlier[i].blocks
        if blocks and earlier[i].n_prompt <= request.n_prompt and blocks == request.blocks[: len(blocks)]:
            return i
    return None
