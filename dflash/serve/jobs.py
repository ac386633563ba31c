"""Answers as asyncio sees them: a queue that the engine's thread fills, and an end to it when the client leaves."""

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
    """Answers that the worker works on for one request.

    Parameters
    ----------
    worker : Worker
        Who works on them.
    answers : sequence of Answer
        Not started yet.

    Raises
    ------
    RequestError, ContextOverflow, PoolExhausted, QueueFull, Cancelled, EngineFailed
        If one can't be started; none is, then.
    """

    def __init__(self, worker: Worker, answers: Sequence[Answer]) -> None:
        self.answers = answers
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._deltas: asyncio.Queue[tuple[int, Delta]] = asyncio.Queue()
        group = object()  # requests take turns to start a text, however many texts each of them wants
        for answer in answers:
            answer.session.group = group
        worker.submit_all([(answer, self._sink(index)) for index, answer in enumerate(answers)])

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """Yield the number of an answer and what a step added to it, until all have ended.

        Raises
        ------
        DFlashError
            What one of them failed with.
        Problem
            If the server closes meanwhile.
        """
        n_open = len(self.answers)
        while n_open:
            index, delta = await self._deltas.get()
            if delta.step.finish == "error":
                raise self.answers[index].session.error or DFlashError("the engine failed; the server's log says why")
            if delta.step.finish == "cancelled":
                raise closing()
            n_open -= delta.step.finish is not None
            yield index, delta

    def close(self) -> None:
        """Give everything back within a step or a prompt chunk; harmless when all is over."""
        for answer in self.answers:
            if not answer.session.finished:
                self._worker.cancel(answer)

    def _sink(self, index: int) -> Sink:
        loop, put = self._loop, self._deltas.put_nowait
        return lambda delta: _tell(loop, put, (index, delta))


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns; when the client leaves first, cancel it.

    A failure of the work outranks the client's leaving.

    Raises
    ------
    ClientDisconnect
        If the client has left.
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


def _tell(loop: asyncio.AbstractEventLoop, put: Callable[[tuple[int, Delta]], None], item: tuple[int, Delta]) -> None:
    with suppress(RuntimeError):  # the loop may close meanwhile: nobody waits for the answer then
        loop.call_soon_threadsafe(put, item)
