"""ASGI middleware: id, access log and debug log of each request."""

import logging
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dflash.serve.admin.debug_log import DebugLog, Exchange
from dflash.serve.admin.request_record import CURRENT, UNMATCHED, RequestCounts, RequestRecord, request_id

log = logging.getLogger("dflash.access")


class RequestLog:
    """Gives each request an id, counts its response, and writes a line to the logger ``dflash.access`` at its end."""

    def __init__(self, app: ASGIApp, counts: RequestCounts, debug_log: DebugLog | None = None) -> None:
        self._app, self._counts, self._debug_log = app, counts, debug_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request (ASGI)."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id")
        record = RequestRecord(request_id(given), scope["method"], _route(scope))
        exchange = None if self._debug_log is None else Exchange(record)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = record.request_id
                if record.route.startswith("/v1/messages"):
                    headers["Request-Id"] = record.request_id  # Anthropic's name
            elif exchange is not None and message["type"] == "http.response.body":
                exchange.answer.add(message.get("body", b""))
            await send(message)

        async def receive_and_copy() -> Message:
            message = await receive()
            if exchange is not None and message["type"] == "http.request":
                exchange.request.add(message.get("body", b""))
            return message

        token = CURRENT.set(record)
        try:
            await self._app(scope, receive_and_copy, send_with_id)
        finally:
            CURRENT.reset(token)
            self._counts.add(record)
            if log.isEnabledFor(logging.INFO):
                log.info("%s", record.line())
            if self._debug_log is not None and exchange is not None:
                self._debug_log.write(exchange)


def _route(scope: MutableMapping[str, Any]) -> str:
    """Return the path of the route that serves a request."""
    for route in scope["app"].routes:
        if route.matches(scope)[0] is not Match.NONE:
            return getattr(route, "path", UNMATCHED)
    return UNMATCHED
