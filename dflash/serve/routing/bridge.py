"""Runs one request on an ASGI application, and yields the messages of its response."""

import asyncio
from collections.abc import AsyncIterator

from starlette.types import ASGIApp, Message

from dflash.json_types import JsonMapping
from dflash.serve.routing.call import RoutedCall

_ENDING: set[asyncio.Task[None]] = set()
"""Runs whose response is no longer read; the event loop holds only weak references to tasks."""


async def responses(app: ASGIApp, call: RoutedCall) -> AsyncIterator[tuple[JsonMapping, ...]]:
    """Yield the messages of a response of a started application as they come; those that are there at once come together.

    Closing the iterator is a disconnect of the client: the application ends the request.
    """
    messages: asyncio.Queue[Message | None] = asyncio.Queue()
    gone = asyncio.Event()
    unread = [{"type": "http.request", "body": call.body, "more_body": False}]

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def run() -> None:
        try:
            await app(dict(call.scope), receive, messages.put)
        finally:
            messages.put_nowait(None)

    task = asyncio.create_task(run())
    _ENDING.add(task)
    task.add_done_callback(_ENDING.discard)
    try:
        ended = False
        while not ended:
            batch = [await messages.get()]
            while not messages.empty():
                batch.append(messages.get_nowait())
            ended = batch[-1] is None
            if found := tuple(message for message in batch if message is not None):
                yield found
        await task
    finally:
        gone.set()
