"""Passes a request to a replica, and its response back unchanged."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from dflash.json_types import JsonObject
from dflash.serve.anthropic.problems import refusal_of
from dflash.serve.dialect import ServerEvent
from dflash.serve.event_stream import encoded
from dflash.serve.http_errors import Problem
from dflash.serve.jobs import until_gone
from dflash.serve.openai.chunks import DONE
from dflash.serve.openai.errors import OpenAIErrors
from dflash.serve.parsing.body import read_bytes
from dflash.serve.routing.body_hints import DIALECTS, hints_of
from dflash.serve.routing.call import Piece, ReplicaLost, RoutedCall, owner_of, plain_scope

Ask = Callable[[RoutedCall], AsyncGenerator[Piece]]
"""Sends a call to a replica and yields the pieces of its response.

Raises `ReplicaLost` if the replica ends before the response does, and `Problem` if the call reaches no replica. Closing the
generator cancels the request.
"""

MAX_BODY = 64 << 20
"""Bytes of a body that are read before a replica is chosen; a replica's own limit is far below."""

MAX_TRIES = 3
"""Replicas that a request is sent to, one after another, while no byte was sent to the client."""

_RESPONSES = "/v1/responses"
"""Path of stored responses."""

_LOST = Problem(503, "the replica that had this request has ended; send the request again", code="replica_lost")


async def relayed(request: Request, ask: Ask, accept_seconds: float) -> Response:
    """Read a request, and return the response that passes it on.

    accept_seconds: seconds for a replica to accept the request; then the response is an error of the request's API with
        status 503.
    """
    scope = plain_scope(request.scope)
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    try:
        body = await read_bytes(request, MAX_BODY)
    except Problem as problem:
        return _refusal(path, problem)
    except ClientDisconnect:
        return Response(status_code=499)
    hints = await asyncio.to_thread(hints_of, path, body, dict(request.headers)) if body else hints_of(path, body)
    stored = path.removeprefix(f"{_RESPONSES}/") if path.startswith(f"{_RESPONSES}/") else hints.previous
    return Relay(path, RoutedCall(scope, body, hints, owner_of(stored)), ask, accept_seconds)


class Relay(Response):
    """A response that comes from a replica. Nothing of it is changed.

    While no byte was sent to the client, a replica that has ended, has failed or refuses for lack of room is replaced by
    another one, up to `MAX_TRIES`. A stream that breaks later ends with the error events of its API.

    path: path of the request below the root of the application; it chooses the form of errors.
    accept_seconds: seconds for a replica to accept it.
    """

    def __init__(self, path: str, call: RoutedCall, ask: Ask, accept_seconds: float) -> None:
        self.status_code, self.background = 200, None
        self.init_headers({})
        self._path, self._call, self._ask, self._accept_seconds = path, call, ask, accept_seconds
        self._start: Message | None = None
        self._started = self._finished = False
        self._first = self._last = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response (ASGI). A client that disconnects ends the request at its replica."""
        with suppress(ClientDisconnect):
            await until_gone(receive, self._run(scope, receive, send))

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        excluded: list[str] = []
        try:
            for left in reversed(range(MAX_TRIES)):
                try:
                    refused = await self._try(replace(self._call, excluded=tuple(excluded)), send, is_last=not left)
                except ReplicaLost:
                    if self._started or not left:
                        raise
                    continue
                if refused is None:
                    return
                excluded.append(refused)
        except ReplicaLost:
            if self._started:
                await self._break_off(send)
            else:
                await _refusal(self._path, _LOST)(scope, receive, send)
        except Problem as problem:
            await _refusal(self._path, problem)(scope, receive, send)

    async def _try(self, call: RoutedCall, send: Send, *, is_last: bool) -> str | None:
        """Pass a response on; return the name of the replica instead if it refuses and the call may go to another one."""
        async with aclosing(self._ask(call)) as pieces:
            try:
                async with asyncio.timeout(self._accept_seconds):
                    await anext(pieces)
            except TimeoutError:
                raise Problem(
                    503, f"no replica accepted the request within {self._accept_seconds:g} seconds", code="overloaded"
                ) from None
            async for piece in pieces:
                if piece.refused and not is_last and piece.replica not in call.excluded:
                    return piece.replica
                for message in piece.messages:
                    await self._pass_on(dict(message), send)
        if not self._finished:
            raise ReplicaLost
        return None

    async def _pass_on(self, message: Message, send: Send) -> None:
        """Send a message. The start is held back until the first bytes, so that another replica may still answer."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self._start is not None:
            await send(self._start)
            self._started, self._is_stream = True, _is_stream(self._start)
            self._start = None
        if message["type"] == "http.response.body":
            self._finished = not message.get("more_body", False)
            if body := message.get("body", b""):
                self._first, self._last = self._first or body, body
        await send(message)

    async def _break_off(self, send: Send) -> None:
        if not self._is_stream:
            raise ReplicaLost  # the length of the body was announced: only a broken connection shows that it is not whole
        ending = map(encoded, _ending(self._path, self._first, self._last, _LOST))
        await send({"type": "http.response.body", "body": b"".join(ending), "more_body": False})


def _is_stream(start: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream") for name, value in start["headers"]
    )


def _refusal(path: str, problem: Problem) -> Response:
    errors: Any = DIALECTS.get(path) or (DIALECTS["/v1/messages"] if path.startswith("/v1/messages") else OpenAIErrors())
    status, body, headers = errors.problem(problem)
    return JSONResponse(body, status_code=status, headers=dict(headers))


def _ending(path: str, first: bytes, last: bytes, problem: Problem) -> Iterator[ServerEvent]:
    """Yield the events that end a stream with an error, as the server itself would send them.

    first, last: the first and the last event that were sent; the Responses API repeats the response and counts its events.
    """
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
