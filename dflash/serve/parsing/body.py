"""Reading and parsing of JSON bodies within limits."""

import asyncio
import json
import re
from typing import Any, NoReturn

import numpy as np
from starlette.requests import Request

from dflash.model.text.written_numbers import written_float
from dflash.serve import limits
from dflash.serve.http_errors import Problem
from dflash.serve.limits import Limits

_STRING = re.compile(rb'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"?')
"""A JSON string, also an unterminated one. Possessive quantifiers: linear time for any body."""

_BRACKETS = b"[]{}"
_OTHERS = bytes(set(range(256)) - set(_BRACKETS))
_STEPS = np.zeros(256, np.int32)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
_LONG_NUMBER = re.compile(rb"[-+.0-9eE]{%d}" % (limits.MAX_DIGITS + 1))


async def read_body(request: Request, limit: int) -> bytes:
    """Read the body of a request of type ``application/json``.

    Raises Problem: 415 if the type is not ``application/json`` or the body is compressed, 413 if the body is too long, 408
        if it does not arrive in time.

    A web page of another origin can't send ``application/json`` without a preflight request, and this server answers those
    of allowed origins only. So no other web page can use a server on the same machine.
    """
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "application/json":
        raise Problem(415, f"Content-Type must be application/json, got {kind[:80]!r}")
    return await read_bytes(request, limit)


async def read_bytes(request: Request, limit: int) -> bytes:
    """Read the body of a request of any type; see `read_body`."""
    coding = request.headers.get("content-encoding", "identity")
    if coding.lower() != "identity":
        raise Problem(415, f"Content-Encoding must be identity, got {coding[:80]!r}")
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced[:19]) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        raise Problem(408, f"the body did not arrive within {limits.BODY_SECONDS:g} seconds") from None
    return bytes(body)


def parse_json(body: bytes, bounds: Limits = Limits()) -> Any:  # noqa: B008 - immutable
    """Parse strict JSON within bounds: no NaN, no unpaired surrogates. Raises Problem: 400; the message says why."""
    _check_structure(body, bounds)
    try:
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_refuse, parse_float=written_float)
        if b"\\ud" in body.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Problem(400, "the body holds an unpaired surrogate, which is not valid text") from None
    except ValueError as error:
        raise Problem(400, f"the body is not valid JSON: {error}") from None
    return value


def _check_structure(body: bytes, bounds: Limits) -> None:
    """Check depth, containers, values and long numbers before parsing, which could take too long."""
    outside = _STRING.sub(b'"', body)
    brackets = outside.translate(None, _OTHERS)
    depth = int(np.cumsum(_STEPS[np.frombuffer(brackets, np.uint8)]).max(initial=0))
    if depth > limits.MAX_DEPTH:
        raise Problem(400, f"the body is nested {depth} levels deep, at most {limits.MAX_DEPTH} are allowed")
    containers = len(brackets) // 2
    if containers > bounds.containers:
        raise Problem(400, f"the body holds {containers} arrays and objects, at most {bounds.containers} are allowed")
    values = outside.count(b",") + containers
    if values > bounds.values:
        raise Problem(400, f"the body holds {values} values, at most {bounds.values} are allowed")
    if _LONG_NUMBER.search(outside):
        raise Problem(400, f"the body holds a number of more than {limits.MAX_DIGITS} characters")


def _too_large(limit: int) -> Problem:
    return Problem(413, f"the body is longer than {limit} bytes", code="body_too_large")


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
