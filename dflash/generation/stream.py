"""Streaming of one completion, and waiting for a batch of completions."""

import queue
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from dflash.errors import DFlashError
from dflash.generation.completion import Answer, Delta
from dflash.generation.engine_thread import Sink, Worker
from dflash.generation.result import Generation


class Stream:
    """Iterator over the steps of one completion. Closing or dropping it cancels the request and frees its memory.

    Parameters
    ----------
    worker : Worker
        Engine thread to run it.
    answer : Answer
        Completion, not started yet.

    Raises
    ------
    RequestError, ContextOverflow, PoolExhausted
        If the completion can never be decoded.
    """

    def __init__(self, worker: Worker, answer: Answer) -> None:
        self._worker, self._answer = worker, answer
        self._deltas: queue.SimpleQueue[Delta] = queue.SimpleQueue()
        self._open = False
        worker.submit(answer, self._deltas.put)
        self._open = True

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delta:
        if not self._open:
            raise StopIteration
        delta = self._worker.wait_for(self._deltas, [self._answer])
        if delta.step.finish is not None:
            self._open = False
            _raise_failure(self._answer, delta)
        return delta

    @property
    def n_prompt(self) -> int:
        """Number of prompt tokens."""
        return self._answer.session.n_prompt

    @property
    def generation(self) -> Generation:
        """Result so far."""
        return self._answer.result()

    def close(self) -> None:
        """Cancel the request and return when its memory is freed."""
        if self._open:
            _end(self._worker, [self._answer])
            self._open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if self._open:
            self._worker.cancel(self._answer)


def finish_all(worker: Worker, answers: Sequence[Answer]) -> list[Generation]:
    """Decode several completions together and wait for all.

    Parameters
    ----------
    worker : Worker
        Engine thread to run them.
    answers : sequence of Answer
        Completions, not started yet.

    Raises
    ------
    DFlashError
        Error of the first completion that failed; the others are cancelled.
    """
    ended: queue.SimpleQueue[tuple[Answer, Delta]] = queue.SimpleQueue()
    group = object()
    for answer in answers:
        answer.session.group = group

    def sink_of(answer: Answer) -> Sink:
        return lambda delta: ended.put((answer, delta)) if delta.step.finish else None

    try:
        worker.submit_all([(answer, sink_of(answer)) for answer in answers])
        for _ in answers:
            _raise_failure(*worker.wait_for(ended, answers))
    except BaseException:
        _end(worker, answers)
        for answer in answers:
            answer.session.error = None
        raise
    return [answer.result() for answer in answers]


def _end(worker: Worker, answers: Sequence[Answer]) -> None:
    """Cancel the completions that still run and wait for their end. Safe after an interrupt at any point."""
    for answer in answers:
        if worker.holds(answer):
            worker.cancel(answer)
    worker.wait_until_free(answers)


def _raise_failure(answer: Answer, last: Delta) -> None:
    if last.step.finish != "error":
        return
    error, answer.session.error = answer.session.error, None
    try:
        raise error or DFlashError("the engine failed; see the log of dflash.worker")
    finally:
        del error  # breaks a reference cycle through the frames of the error
