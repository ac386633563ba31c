"""A text as it comes, step by step; and many at once, waited for."""

import queue
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from dflash.errors import DFlashError
from dflash.generation.completion import Answer, Delta
from dflash.generation.engine_thread import Sink, Worker
from dflash.generation.result import Generation


class Stream:
    """Iterator over the steps of one answer. Breaking off, closing it or an exception frees its memory.

    Parameters
    ----------
    worker : Worker
        Whose loop the answer joins.
    answer : Answer
        Not started yet.

    Raises
    ------
    RequestError, ContextOverflow, PoolExhausted
        If the answer can never be worked on.
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
        """Tokens of the prompt."""
        return self._answer.session.n_prompt

    @property
    def generation(self) -> Generation:
        """All of it so far."""
        return Generation.of(self._answer.session, self._answer.pieces)

    def close(self) -> None:
        """Break off, and return when everything is given back."""
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
    """Work on several answers in one loop, to the end of all.

    Parameters
    ----------
    worker : Worker
        Whose loop they join.
    answers : sequence of Answer
        Not started yet.

    Raises
    ------
    DFlashError
        What the first of them failed with; the others are cancelled then.
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
    return [Generation.of(answer.session, answer.pieces) for answer in answers]


def _end(worker: Worker, answers: Sequence[Answer]) -> None:
    """Cancel what runs and wait until the worker has let go of it, wherever an interrupt has caught us."""
    for answer in answers:
        if worker.holds(answer):
            worker.cancel(answer)
    worker.wait_until_free(answers)


def _raise_failure(answer: Answer, last: Delta) -> None:
    if last.step.finish != "error":
        return
    error, answer.session.error = answer.session.error, None
    try:
        raise error or DFlashError("the engine failed; the log of dflash.worker says why")
    finally:
        del error  # what its frames hold must not hold it: all that would wait for the collector of cycles
