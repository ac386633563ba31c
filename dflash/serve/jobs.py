"""Bridge from the engine thread to asyncio: a queue per request, and cancellation when the client disconnects."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from math import inf
from typing import ClassVar, TypeVar
from weakref import WeakKeyDictionary, ref

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from dflash.errors import DFlashError
from dflash.generation.completion import Completion, Delta
from dflash.generation.engine_thread import EngineThread, Flush, Sink
from dflash.serve.admin.request_record import note
from dflash.serve.http_errors import Problem, closing

T = TypeVar("T")
Item = tuple[int, Delta]
Put = Callable[[Item], None]


class Running:
    """The running completions of one request. Results wait in a queue, so that a slow client never delays the engine."""

    def __init__(self, engine_thread: EngineThread, completions: Sequence[Completion], seconds: float = inf) -> None:
        self.completions = completions
        note(completions)
        self._engine_thread = engine_thread
        self._loop = asyncio.get_running_loop()
        self._seconds, self._deadline = seconds, self._loop.time() + seconds
        self._outbox = Outbox.of(self._loop)
        self._deltas: asyncio.Queue[Item] = asyncio.Queue()
        self.n_open = len(completions)
        group = object()  # requests take turns to start sequences, however many each has
        for completion in completions:
            completion.session.group = group
        engine_thread.submit_all([(completion, self._sink(index)) for index, completion in enumerate(completions)])

    async def next(self, timeout: float | None = None) -> tuple[int, Delta] | None:
        """Return the index of a completion and what a step added to it. Not called when `n_open` is 0.

        timeout: seconds to wait; then None is returned.
        """
        left = self._time_left()  # checked first: a slow reader finds deltas at once
        wait = left if timeout is None else min(left, timeout)
        try:
            async with asyncio.timeout(None if wait == inf else wait):
                index, delta = await self._deltas.get()
        except TimeoutError:
            self._time_left()
            return None
        if delta.step.finish == "error":
            raise self.completions[index].session.error or DFlashError("the engine failed; see the server's log")
        if delta.step.finish == "cancelled":
            raise closing()
        self.n_open -= delta.step.finish is not None
        return index, delta

    @property
    def seconds_left(self) -> float:
        """Seconds until the request has taken too long; negative afterwards."""
        return self._deadline - self._loop.time()

    async def finish(self) -> None:
        """Wait until all completions have ended."""
        while self.n_open:
            await self.next()

    def close(self) -> None:
        """Cancel open completions; their memory is freed within a step or a prompt chunk. Safe to call again."""
        for completion in self.completions:
            if not completion.session.finished:
                self._engine_thread.cancel(completion)

    def _time_left(self) -> float:
        left = self.seconds_left
        if left <= 0:
            raise Problem(504, f"the request took more than {self._seconds:g} seconds", code="timeout")
        return left

    def _sink(self, index: int) -> Sink:
        outbox, put = self._outbox, self._deltas.put_nowait
        return lambda delta: outbox.add(put, (index, delta))


async def until_gone(receive: Receive, work: Awaitable[T]) -> T:
    """Return the result of `work`; cancel it if the client disconnects first.

    If both happen at once, the result or error of `work` counts.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Outbox:
    """Additions of an engine step to all requests of an event loop, which is woken once for all of them.

    To wake it for each would give it the interpreter while the engine thread still needs that.
    """

    _of_loop: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, Outbox]] = WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._waiting = ref(loop), deque[tuple[Put, Item]]()

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Outbox:
        """Return the outbox of a loop. Called in the loop."""
        return cls._of_loop.setdefault(loop, cls(loop))

    def add(self, put: Put, item: Item) -> Flush:
        """Add an item that the loop is to pass to `put`; return `flush`. Called in the engine thread."""
        self._waiting.append((put, item))
        return self.flush

    def flush(self) -> None:
        """Pass all items on in the loop. Called in the engine thread."""
        loop = self._loop()
        with suppress(RuntimeError):  # the loop may be closed: then nothing waits for the items
            if loop is not None:
                loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        while self._waiting:
            put, item = self._waiting.popleft()
            put(item)
