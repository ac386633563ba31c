"""Bridge from the engine thread to asyncio: a queue per request, and cancellation when the client disconnects."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from dflash.errors import DFlashError
from dflash.generation.completion import Answer, Delta
from dflash.generation.engine_thread import Sink, Worker
from dflash.serve.http_errors import closing

T = TypeVar("T")


class Running:
    """The running completions of one request.

    Parameters
    ----------
    worker : Worker
        Engine thread to run them.
    answers : sequence of Answer
        Completions, not started yet.

    Raises
    ------
    RequestError, ContextOverflow, PoolExhausted, QueueFull, Cancelled, EngineFailed
        If one of them can't be started; then none is.
    """

    def __init__(self, worker: Worker, answers: Sequence[Answer]) -> None:
        self.answers = answers
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._deltas: asyncio.Queue[tuple[int, Delta]] = asyncio.Queue()
        group = object()  # requests take turns to start sequences, however many each has
        for answer in answers:
            answer.session.group = group
        worker.submit_all([(answer, self._sink(index)) for index, answer in enumerate(answers)])

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """Yield the index of a completion and what a step added to it, until all have ended.

        Raises
        ------
        DFlashError
            Error of a completion that failed.
        Problem
            If the server shuts down.
        """
        n_open = len(self.answers)
        while n_open:
            index, delta = await self._deltas.get()
            if delta.step.finish == "error":
                raise self.answers[index].session.error or DFlashError("the engine failed; see the server's log")
            if delta.step.finish == "cancelled":
                raise closing()
            n_open -= delta.step.finish is not None
            yield index, delta

    def close(self) -> None:
        """Cancel open completions; their memory is freed within a step or a prompt chunk. Safe to call again."""
        for answer in self.answers:
            if not answer.session.finished:
                self._worker.cancel(answer)

    def _sink(self, index: int) -> Sink:
        loop, put = self._loop, self._deltas.put_nowait
        return lambda delta: _post(loop, put, (index, delta))


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; cancel it if the client disconnects first.

    If both happen at once, the result or error of `work` counts.

    Raises
    ------
    ClientDisconnect
        If the client has disconnected.
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


def _post(loop: asyncio.AbstractEventLoop, put: Callable[[tuple[int, Delta]], None], item: tuple[int, Delta]) -> None:
    with suppress(RuntimeError):  # the loop may be closed: then nothing waits for the item
        loop.call_soon_threadsafe(put, item)
