"""Responses while the model is loading."""

import socket
import threading
from time import monotonic
from types import TracebackType
from typing import Self

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from dflash.json_types import JsonObject
from dflash.kernels.compiling import count
from dflash.serve.http_errors import Problem
from dflash.serve.page.document import page_response
from dflash.serve.startup.protocol import CONNECTIONS

_HEALTH = {"status": "loading model"}
_PROBLEM = Problem(503, "the model is loading; try again later", code="loading", headers={"Retry-After": "2"})


class _Server(uvicorn.Server):
    """A server that ends in its loop only, after it has started: otherwise its sockets stay open, for which uvloop waits."""

    is_over = False

    async def on_tick(self, counter: int) -> bool:
        """Return True to shut down. Called by uvicorn ten times a second."""
        return self.is_over or await super().on_tick(counter)


class LoadingServer:
    """Context manager: answers every request with 503 while its block loads the model; ``/`` with the page, which waits.

    Connections are closed after each response. Those that arrive when the block ends wait for the next server.
    """

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = [each.dup() for each in sockets]  # closed by the server; others keep what it did not accept
        settings = {**CONNECTIONS, "interface": "asgi3", "lifespan": "off", "log_config": None}
        self._server = _Server(uvicorn.Config(self._answer, **settings))
        self._stage, self._began, self._kernels = "", monotonic(), count()
        self._thread = threading.Thread(target=self._server.run, args=(self._sockets,), name="dflash-loading", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.is_over = True
        self._thread.join()

    def report(self, stage: str) -> None:
        """Name the stage of loading that begins; ``/health`` shows it."""
        self._stage = stage

    def _health(self) -> JsonObject:
        """Return the body of ``/health``: what is being done, for how many seconds, and how many kernels are compiled."""
        now = count()
        done = now.done - self._kernels.done
        body: JsonObject = dict(_HEALTH)
        if self._stage:
            body |= {"stage": self._stage, "seconds": round(monotonic() - self._began, 1)}
        if now.waiting:
            body["kernels"] = {"done": done, "all": done + now.waiting}
        return body

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI): 503, as llama-server does."""
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        headers = {**_PROBLEM.headers, "Connection": "close"}
        if scope["path"] == "/" and scope["method"] in ("GET", "HEAD"):
            response = page_response(_PROBLEM.status, **headers)
        else:
            body = self._health() if scope["path"] == "/health" else _PROBLEM.body()
            response = JSONResponse(body, _PROBLEM.status, headers)
        await response(scope, receive, send)
