"""Bytes of a request to JSON, within limits."""

import json
from typing import Any, NoReturn

from starlette.requests import Request

from dflash.serve.problems import Problem

MAX_BODY = 32 << 20
"""Bytes that a body may have; a million tokens of text take about four."""


async def read_json(request: Request, limit: int = MAX_BODY) -> Any:
    """Read the body of a request.

    Parameters
    ----------
    request : Request
        Not read yet.
    limit : int
        Most bytes that are taken in.

    Raises
    ------
    Problem
        413 if it is longer, 400 if it is not JSON or holds what JSON can't.
    ClientDisconnect
        If the client leaves before the end.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise Problem(413, f"the body is longer than {limit} bytes", code="body_too_large")
    return parse_json(bytes(body))


def parse_json(body: bytes) -> Any:
    """Parse strict JSON: no NaN, no halves of surrogate pairs, no bottomless nesting.

    Raises
    ------
    Problem
        400, with the reason.
    """
    try:
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_refuse)
        if b"\\ud" in body.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise Problem(400, "the body is nested too deeply") from None
    except UnicodeEncodeError:
        raise Problem(400, "the body holds half of a surrogate pair, which is no text") from None
    except ValueError as error:
        raise Problem(400, f"the body is not valid JSON: {error}") from None
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
