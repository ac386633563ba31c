"""A response of server-sent events."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from dflash.serve import limits
from dflash.serve.dialect import AnswerFormat, ServerEvent
from dflash.serve.http_errors import problem_of
from dflash.serve.jobs import Running, until_gone

log = logging.getLogger("dflash.serve")


class EventStream(Response):
    """Sends events as they arise. Ends its completions on every exit, also if the client disconnects.

    The opening events are sent at once, before the prompt is read. After `limits.HEARTBEAT_SECONDS` without an event a
    heartbeat is sent. A stream that fails ends with the failure events of its format. A client that takes nothing for
    `limits.SEND_SECONDS`, or until the request's time is over, counts as disconnected.
    """

    media_type = "text/event-stream"

    def __init__(self, running: Running, answer: AnswerFormat) -> None:
        self.status_code, self.background = 200, None
        self._running, self._answer = running, answer
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
        send = self._bounded(send)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for events in self._events():
                await send({"type": "http.response.body", "body": events, "more_body": True})
        except ClientDisconnect:
            raise
        except Exception as error:
            events = await _in_thread(self._answer.failure, problem_of(error))
            await send({"type": "http.response.body", "body": events, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[bytes]:
        """Yield events as they are sent. What grows with the request or with its whole output is made in another thread."""
        running, answer, now = self._running, self._answer, asyncio.get_running_loop().time
        if opening := await _in_thread(answer.opening):
            yield opening
        sent = now()
        while running.n_open:
            item = await running.next(max(sent + limits.HEARTBEAT_SECONDS - now(), 0))
            if item is None:
                events = await _in_thread(lambda: [answer.heartbeat()])
            elif item[1].step.finish is not None:
                events = await _in_thread(answer.delta, *item)
            else:
                events = b"".join(map(encoded, answer.delta(*item)))
            if events:
                yield events
                sent = now()
        yield await _in_thread(answer.closing, running.completions)

    def _bounded(self, send: Send) -> Send:
        """Wrap `send`, which waits while the socket is full: raise `ClientDisconnect` after a time."""

        async def bounded(message: Message) -> None:
            seconds = min(limits.SEND_SECONDS, max(self._running.seconds_left, limits.LAST_SECONDS))
            try:
                async with asyncio.timeout(seconds):
                    await send(message)
            except TimeoutError:
                log.warning("a stream is cut: its client has read nothing for %g seconds", round(seconds, 1))
                raise ClientDisconnect from None

        return bounded


_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""Characters that end a line for clients that split text in Unicode's way, as httpx does; JSON may hold them as they are."""


def encoded(event: ServerEvent) -> bytes:
    """Return an event as it is sent."""
    data, name = event
    if data is None:
        return b"\n"
    text = (
        data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(_LINE_ENDS)
    )
    head = f"event: {name}\n" if name is not None else ""
    return f"{head}data: {text}\n\n".encode()


async def _in_thread(events: Callable[..., Iterable[ServerEvent]], *arguments: Any) -> bytes:
    """Return the events of a call as they are sent."""
    return await asyncio.to_thread(lambda: b"".join(map(encoded, events(*arguments))))
