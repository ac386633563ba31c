"""The uvicorn server, its shutdown, and connections whose clients read nothing."""

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from math import inf
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from dflash.generation.engine_thread import EngineThread
from dflash.serve import limits
from dflash.serve.app import errors_of, refusal
from dflash.serve.health import MAX_CLOSING
from dflash.serve.http_errors import Problem
from dflash.serve.startup.protocol import CONNECTIONS

SWITCH_SECONDS = 0.001
"""Seconds that a thread waits for the interpreter while another one computes. With Python's 5 ms the engine's thread, which
gives it up with each launch, waits for the event loop that long: a simulated GPU is idle two to three times as long."""


class Server(uvicorn.Server):
    """Uvicorn server whose shutdown gives open requests a grace period and then ends them with an error.

    A signal (SIGINT, SIGTERM) or a failure of the engine begins the shutdown. A second signal ends the process at once.

    grace: seconds that open requests may take at shutdown.
    """

    def __init__(self, app: ASGIApp, engine_thread: EngineThread, *, grace: float, ready: Callable[[], object]) -> None:
        timeout = int(grace + MAX_CLOSING)
        config = uvicorn.Config(
            self._unless_crowded(app),
            timeout_graceful_shutdown=timeout,
            **CONNECTIONS,
        )
        super().__init__(config)
        self._engine_thread, self._grace, self._ready = engine_thread, grace, ready
        self._signalled, self._unread = False, UnreadConnections()

    def _unless_crowded(self, app: ASGIApp) -> ASGIApp:
        """Return the application that refuses requests beyond `limits.MAX_CONNECTIONS` connections, but for ``/health``."""

        async def bounded(scope: Scope, receive: Receive, send: Send) -> None:
            n = len(self.server_state.connections)
            if scope["type"] != "http" or n <= limits.MAX_CONNECTIONS or scope["path"] == "/health":
                return await app(scope, receive, send)
            problem = Problem(503, f"{n} connections are open; try again later", code="overloaded")
            response = refusal(problem, errors_of(scope["path"]))
            response.headers["Connection"] = "close"
            return await response(scope, receive, send)

        return bounded

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal or a failure of the engine; return when every request has been answered."""
        sys.setswitchinterval(SWITCH_SECONDS)
        if threading.current_thread() is not threading.main_thread():
            return super().run(sockets)
        # after shutdown uvicorn raises handled signals again: SIGTERM would end the process with status -15
        before = signal.signal(signal.SIGTERM, _ignore)
        try:
            return super().run(sockets)
        finally:
            signal.signal(signal.SIGTERM, before)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the shutdown; a second signal ends the process."""
        if self._signalled:
            signal.signal(sig, signal.SIG_DFL)
            os.kill(os.getpid(), sig)
        self._signalled = True
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections. Called by uvicorn."""
        await super().startup(sockets)
        self._ready()
        if self.should_exit:  # after a signal, uvicorn would leave the sockets open, for which a loop of uvloop waits
            await self.shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Return True to shut down. Called by uvicorn ten times a second."""
        self._unread.check(self.server_state.connections, asyncio.get_running_loop().time())
        return await super().on_tick(counter) or self._engine_thread.error is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, wait for the grace period, then end open requests with an error."""
        ending = asyncio.create_task(self._end_answers())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _end_answers(self) -> None:
        await asyncio.sleep(self._grace)
        await asyncio.to_thread(self._engine_thread.close, MAX_CLOSING)
        await asyncio.sleep(limits.LAST_SECONDS)
        self._unread.close(self.server_state.connections)


def _ignore(sig: int, frame: FrameType | None) -> None:
    """Do nothing: uvicorn's own handler has begun the shutdown, or the process is ending anyway."""


class UnreadConnections:
    """Closes connections on which bytes wait that the client does not take.

    The event loop closes a connection after its last byte was taken. So a client that stops reading would hold one of
    `limits.MAX_CONNECTIONS` and the bytes for ever. `EventStream` bounds the wait for an event of an open stream. The bytes
    that are watched here can only become fewer.
    """

    def __init__(self) -> None:
        self._waiting: dict[Any, tuple[float, float]] = {}

    def check(self, connections: Iterable[Any], now: float) -> None:
        """Close connections that are stuck; `now` is in seconds. Called in the event loop, several times a second."""
        before, self._waiting = self._waiting, {}
        for connection in tuple(connections):
            n_bytes = connection.transport.get_write_buffer_size()
            if not n_bytes:
                continue
            if connection.cycle is not None and not connection.cycle.response_complete:
                if connection.transport.is_closing():  # no response can be completed on it
                    connection.transport.abort()
                continue
            fewest, since = before.get(connection, (inf, now))
            if n_bytes >= fewest and now - since >= limits.SEND_SECONDS:
                connection.transport.abort()
            else:
                self._waiting[connection] = (n_bytes, now if n_bytes < fewest else since)

    @staticmethod
    def close(connections: Iterable[Any]) -> None:
        """Close all connections on which bytes wait. Called at the end of a shutdown's grace period."""
        for connection in tuple(connections):
            if connection.transport.get_write_buffer_size():
                connection.transport.abort()
