"""Responses while the model is loading."""

import json
import socket
import threading
from types import TracebackType
from typing import Self

import uvicorn
from starlette.types import Receive, Scope, Send

from dflash.serve.http_errors import Problem
from dflash.serve.page.document import page_response
from dflash.serve.startup.protocol import CONNECTIONS
from dflash.serve.startup.sockets import duplicates

_HEALTH = {"status": "loading model"}
_PROBLEM = Problem(503, "the model is loading; try again later", code="loading", headers={"Retry-After": "2"})


class LoadingServer:
    """Context manager: answers every request with 503 while its block loads the model; ``/`` with the page, which waits.

    Connections are closed after each response. Those that arrive when the block ends wait for the next server.

    Parameters
    ----------
    sockets : list of socket
        Listening sockets; they stay open.
    """

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = duplicates(sockets)
        settings = {**CONNECTIONS, "lifespan": "off", "log_config": None}
        self._server = uvicorn.Server(uvicorn.Config(loading, **settings))
        self._thread = threading.Thread(target=self._server.run, args=(self._sockets,), name="dflash-loading", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.should_exit = True
        self._thread.join()


async def loading(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one request (ASGI): 503, as llama-server does."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    if scope["path"] == "/" and scope["method"] in ("GET", "HEAD"):
        await page_response(_PROBLEM.status, **_PROBLEM.headers, Connection="close")(scope, receive, send)
        return
    body = json.dumps(_HEALTH if scope["path"] == "/health" else _PROBLEM.body()).encode()
    headers = {
        **_PROBLEM.headers,
        "Content-Type": "application/json",
        "Connection": "close",
        "Content-Length": str(len(body)),
    }
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": _PROBLEM.status, "headers": raw})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
