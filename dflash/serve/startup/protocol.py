"""HTTP/1.1 with limits on the head of a request, whose errors have the form of the APIs."""

import asyncio
import json
import sys
from collections import Counter
from http import HTTPStatus
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from dflash.json_types import JsonObject
from dflash.serve import limits
from dflash.serve.app import errors_of
from dflash.serve.http_errors import Problem

_MESSAGES = {
    431: f"the request line and the headers are longer than {limits.HEADER_BYTES} bytes",
    501: "the Transfer-Encoding of the body is not supported; use chunked, or Content-Length",
}


class BoundedProtocol(H11Protocol):
    """A connection of uvicorn.

    A request whose head does not arrive within `limits.HEADER_SECONDS` is refused with 408, so that no client holds
    connections with half requests. If all connections are taken, the oldest one without a whole request is closed, of the
    address that has most of those. A head that is too long, or no HTTP, is refused with an error of the API that its path
    belongs to.

    idle_since: time of the event loop at which the connection began, or completed its last response.
    is_shutting_down: true once `shutdown` was called: the next response is the last one.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._head_timer: asyncio.TimerHandle | None = None
        self.idle_since, self.is_shutting_down = 0.0, False

    @property
    def is_unused(self) -> bool:
        """True if no whole request has arrived that is not answered yet."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request (asyncio). Transports of uvloop do not derive from those of asyncio."""
        super().connection_made(cast("asyncio.Transport", transport))
        self.idle_since = self.loop.time()
        self._make_room()
        self._wait_for_head()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request. Called by uvicorn."""
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def shutdown(self) -> None:
        """Close the connection after its response, or after a moment without a request. Called by uvicorn once.

        A request that the client has sent before it could know of the shutdown is answered.
        """
        self.is_shutting_down = True
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(limits.LAST_REQUEST_SECONDS, super().shutdown)
        else:
            super().shutdown()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request (asyncio)."""
        super().data_received(data)
        if self.is_shutting_down and self.cycle is not None:
            self.cycle.keep_alive = False
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait (asyncio)."""
        super().connection_lost(exc)
        self._stop_waiting()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request. Called by uvicorn while it handles the error."""
        status = getattr(sys.exc_info()[1], "error_status_hint", 400)
        self._refuse(Problem(status, _MESSAGES.get(status, msg)))

    def _make_room(self) -> None:
        if len(self.connections) <= limits.MAX_CONNECTIONS:
            return
        unused = [
            each for each in self.connections if each is not self and isinstance(each, BoundedProtocol) and each.is_unused
        ]
        if unused:
            n_of = Counter(each.client and each.client[0] for each in unused)
            chosen = max(unused, key=lambda each: (n_of[each.client and each.client[0]], -each.idle_since))
            self.connections.discard(chosen)
            chosen.transport.abort()

    def _wait_for_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(limits.HEADER_SECONDS, self._head_is_late)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if self.conn.trailing_data[0]:
            self._refuse(Problem(408, f"the headers did not arrive within {limits.HEADER_SECONDS:g} seconds"))
        elif self.cycle is None:  # later on, uvicorn closes a connection that is idle
            self.timeout_keep_alive_handler()

    def _refuse(self, problem: Problem) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            unread: bytes = self.conn.trailing_data[0]
            path = (*unread[:1000].split(b" ", 2), b"", b"")[1]
            if self.cycle is not None and not self.cycle.response_complete:  # the error is in its body
                path = self.cycle.scope["raw_path"]
            status, content, more = errors_of(path.decode("latin-1")).problem(problem)
            body = json.dumps(content).encode()
            headers = {**more, "Content-Type": "application/json", "Connection": "close", "Content-Length": str(len(body))}
            response = h11.Response(
                status_code=status,
                headers=[(name.encode(), value.encode()) for name, value in headers.items()],
                reason=HTTPStatus(status).phrase.encode(),
            )
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


CONNECTIONS: JsonObject = {
    "http": BoundedProtocol,
    "ws": "none",
    "h11_max_incomplete_event_size": limits.HEADER_BYTES,
    "timeout_keep_alive": limits.KEEP_ALIVE_SECONDS,
    "access_log": False,  # `RequestLog` writes one
}
"""Settings of `uvicorn.Config`: no connection depends on whether httptools or a package for web sockets is installed."""
