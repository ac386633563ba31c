"""End of a stream whose replica has ended, in the form of its API."""

import json
from collections.abc import Iterator

from dflash.json_types import JsonObject
from dflash.serve.anthropic.problems import refusal_of
from dflash.serve.dialect import ServerEvent
from dflash.serve.event_stream import encoded
from dflash.serve.http_errors import Problem
from dflash.serve.openai.chunks import DONE


def ending_of(path: str, first: bytes, last: bytes, problem: Problem) -> bytes:
    """Return the events that end a stream with an error, as the server itself would send them.

    first, last: the first and the last event that were sent; the Responses API repeats the response and counts its events.
    """
    return b"".join(map(encoded, _events(path, first, last, problem)))


def _events(path: str, first: bytes, last: bytes, problem: Problem) -> Iterator[ServerEvent]:
    if path == "/v1/messages":
        yield ServerEvent(refusal_of(problem)[1], "error")
    elif path == "/v1/responses":
        error = {"code": "server_error", "message": problem.message}
        response = {**_data(first).get("response", {}), "status": "failed", "error": error}
        number = _data(last).get("sequence_number", 0) + 1
        yield ServerEvent({"type": "response.failed", "sequence_number": number, "response": response}, "response.failed")
    else:
        yield ServerEvent(problem.body())
        yield DONE


def _data(event: bytes) -> JsonObject:
    lines = [line for line in event.decode().splitlines() if line.startswith("data: ")]
    return json.loads(lines[-1].removeprefix("data: ")) if lines else {}
