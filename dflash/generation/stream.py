"""Streaming of one completion, and waiting for a batch of completions."""

import queue
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from dflash.errors import DFlashError
from dflash.generation.completion import Completion, Delta
from dflash.generation.engine_thread import EngineThread, Sink
from dflash.generation.result import Generation


class Stream:
    """Iterator over the steps of one completion. Closing or dropping it cancels the request and frees its memory."""

    def __init__(self, engine_thread: EngineThread, completion: Completion) -> None:
        self._engine_thread, self._completion = engine_thread, completion
        self._deltas: queue.SimpleQueue[Delta] = queue.SimpleQueue()
        self._open = False
        engine_thread.submit(completion, self._deltas.put)
        self._open = True

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delta:
        if not self._open:
            raise StopIteration
        delta = self._engine_thread.wait_for(self._deltas, [self._completion])
        if delta.step.finish is not None:
            self._open = False
            _raise_failure(self._completion, delta)
        return delta

    @property
    def n_prompt(self) -> int:
        """Number of prompt tokens."""
        return self._completion.session.n_prompt

    @property
    def generation(self) -> Generation:
        """Result so far."""
        return self._completion.result()

    def close(self) -> None:
        """Cancel the request and return when its memory is freed."""
        if self._open:
            _end(self._engine_thread, [self._completion])
            self._open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if self._open:
            self._engine_thread.cancel(self._completion)


def finish_all(engine_thread: EngineThread, completions: Sequence[Completion]) -> list[Generation]:
    """Decode several completions together and wait for all."""
    ended: queue.SimpleQueue[tuple[Completion, Delta]] = queue.SimpleQueue()
    group = object()
    for completion in completions:
        completion.session.group = group

    def sink_of(completion: Completion) -> Sink:
        return lambda delta: ended.put((completion, delta)) if delta.step.finish else None

    try:
        engine_thread.submit_all([(completion, sink_of(completion)) for completion in completions])
        for _ in completions:
            _raise_failure(*engine_thread.wait_for(ended, completions))
    except BaseException:
        _end(engine_thread, completions)
        for completion in completions:
            completion.session.error = None
        raise
    return [completion.result() for completion in completions]


def _end(engine_thread: EngineThread, completions: Sequence[Completion]) -> None:
    """Cancel the completions that still run and wait for their end. Safe after an interrupt at any point."""
    for completion in completions:
        if engine_thread.holds(completion):
            engine_thread.cancel(completion)
    engine_thread.wait_until_free(completions)


def _raise_failure(completion: Completion, last: Delta) -> None:
    if last.step.finish != "error":
        return
    error, completion.session.error = completion.session.error, None
    try:
        raise error or DFlashError("the engine failed; see the log of dflash.generation.engine_thread")
    finally:
        del error  # breaks a reference cycle through the frames of the error
