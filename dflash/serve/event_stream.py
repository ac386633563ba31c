"""A response of server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from dflash.serve import limits
from dflash.serve.http_errors import problem_of
from dflash.serve.jobs import Running, until_gone


class EventStream(Response):
    """Sends chunks as they arrive, then ``[DONE]``. Ends its completions on every exit, also if the client disconnects.

    Parameters
    ----------
    running : Running
        Completions of the request.
    chunks : async iterator of dict
        Chunks to send. If the iterator fails, its error is the last event.
    """

    media_type = "text/event-stream"

    def __init__(self, running: Running, chunks: AsyncIterator[dict[str, Any]]) -> None:
        self.status_code, self.background = 200, None
        self._running, self._chunks = running, chunks
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the response (ASGI)."""
        try:
            await until_gone(receive, self._send(send))
        except ClientDisconnect:
            pass
        finally:
            self._running.close()

    async def _send(self, send: Send) -> None:
        send = _within(limits.SEND_SECONDS, send)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for chunk in self._chunks:
                await send(_event(json.dumps(chunk, ensure_ascii=False, separators=(",", ":"))))
            await send(_event("[DONE]"))
        except ClientDisconnect:
            raise
        except Exception as error:
            await send(_event(json.dumps(problem_of(error).body())))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _within(seconds: float, send: Send) -> Send:
    """Wrap `send`: a client that reads nothing for `seconds` counts as disconnected."""

    async def bounded(message: Message) -> None:
        try:
            async with asyncio.timeout(seconds):
                await send(message)
        except TimeoutError:
            raise ClientDisconnect from None

    return bounded


def _event(data: str) -> dict[str, Any]:
    return {"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True}
