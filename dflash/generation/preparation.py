"""Prepare strategies beside the engine: files are read and kernels compiled while everybody's texts go on."""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from typing import Any

from dflash.decode.drafting.drafter import Drafter, Nothing, Strategy, is_prepared, prepare_in_parts
from dflash.decode.engine import Engine
from dflash.errors import DFlashError, PoolExhausted
from dflash.generation.refusals import Refused, anew

_log = logging.getLogger(__name__)

MAX_JOBS = 16
"""Strategies that are prepared at a time; each has a thread, which may be waiting for a download."""

MAX_WAITING = 64
"""Requests of a server that wait for such strategies at a time; more are told to come again."""

_END = object()


class PreparationJob:
    """A drafter that is being prepared, for all who wait for it.

    Parameters
    ----------
    crowd : Semaphore, optional
        Bounds how many coroutines wait for this job and others.
    """

    def __init__(self, crowd: threading.Semaphore | None = None) -> None:
        self._crowd = crowd
        self._ended: Future[None] = Future()
        self._ended.set_running_or_notify_cancel()  # who gives up waiting ends nothing
        self._error: BaseException | None = None

    @classmethod
    def done(cls, error: BaseException | None = None) -> "PreparationJob":
        """Make one that has ended."""
        job = cls()
        job.end(error)
        return job

    def end(self, error: BaseException | None = None) -> None:
        """Tell all who wait."""
        self._error = anew(error) if isinstance(error, DFlashError) else error
        self._ended.set_result(None)

    def wait(self) -> None:
        """Return when the drafter is prepared, or raise why it can't be."""
        self._ended.result()
        self._raise()

    async def arrive(self) -> None:
        """Do what `wait` does, in a coroutine; it may be cancelled.

        Raises
        ------
        PoolExhausted
            If too many wait: they must not take the place of requests that have all they need.
        """
        if self._crowd is not None and not self._ended.done():
            if not self._crowd.acquire(blocking=False):
                raise PoolExhausted(f"{MAX_WAITING} requests wait for drafts that are being prepared; try again later")
            try:
                await asyncio.wrap_future(self._ended)
            finally:
                self._crowd.release()
        self._raise()

    def _raise(self) -> None:
        if isinstance(self._error, DFlashError):
            raise anew(self._error)
        if self._error is not None:
            raise self._error.with_traceback(None)


class Preparation:
    """Prepares each drafter once, whoever asks for it at the same time.

    Files are downloaded, opened and checked and kernels compiled in a thread of each job. What touches the state of the
    model is an errand of the engine: one short piece before each step.

    Parameters
    ----------
    engine : Engine
        Runs the model.
    wake : callable
        Called when there is something to do for an engine that sleeps.
    """

    def __init__(self, engine: Engine, wake: Callable[[], None]) -> None:
        self._engine, self._wake = engine, wake
        self._jobs: dict[Drafter, PreparationJob] = {}
        self._lock, self._errands = threading.Lock(), threading.Lock()
        self._crowd = threading.Semaphore(MAX_WAITING)
        self._refused = Refused()

    def begin(self, strategy: Strategy) -> PreparationJob:
        """Begin to prepare what a strategy needs, or join those who wait for it already.

        Raises
        ------
        PoolExhausted
            If too many others are being prepared.
        """
        drafter = strategy.drafter
        if type(drafter) is Nothing or is_prepared(drafter, self._engine.model):
            return PreparationJob.done()
        refusal = self._refused.error_of(drafter)
        if refusal is not None:
            return PreparationJob.done(refusal)
        with self._lock:
            if drafter in self._jobs:
                return self._jobs[drafter]
            if len(self._jobs) >= MAX_JOBS:
                raise PoolExhausted(f"{len(self._jobs)} strategies are being prepared, no more at a time; try again later")
            job = self._jobs[drafter] = PreparationJob(self._crowd)
        threading.Thread(target=self._run, args=(drafter, job), name="dflash-prepare", daemon=True).start()
        return job

    def _run(self, drafter: Drafter, job: PreparationJob) -> None:
        """Do a job to its end; it never raises."""
        failure: BaseException | None = None
        try:
            self._prepare(drafter)
        except DFlashError as error:
            failure = anew(error)
        except BaseException as error:
            _log.exception("%r can't be prepared", drafter)
            failure = error.with_traceback(None)
        with self._lock:
            del self._jobs[drafter]
        job.end(failure)

    def _prepare(self, drafter: Drafter) -> None:
        if is_prepared(drafter, self._engine.model):
            return
        refusal = self._refused.error_of(drafter)
        if refusal is not None:
            raise refusal
        for part in getattr(drafter, "parts", ()):
            try:
                self._part(part)
            except DFlashError as error:
                if getattr(drafter, "needs_all", True):
                    raise
                _log.info("%r does without %r: %s", drafter, part, error)
        files = self._refused.files(drafter)
        try:
            self._work(drafter)
        except DFlashError as error:
            self._refused.add(drafter, error, files)
            raise

    def _part(self, drafter: Drafter) -> None:
        """Prepare a part of another drafter, or wait for who is at it. A job waits for its parts alone: no circle."""
        with self._lock:
            job = self._jobs.get(drafter)
            own = job is None
            if job is None:
                job = self._jobs[drafter] = PreparationJob(self._crowd)
        if own:
            self._run(drafter, job)
        job.wait()

    def _work(self, drafter: Drafter) -> None:
        with closing(prepare_in_parts(drafter, self._engine.model)) as pieces:
            going = next(pieces, _END) is not _END
            with self._errands:  # of several that measure, the first does it for all
                while going:
                    going = self._in_engine(partial(next, pieces, _END)) is not _END

    def _in_engine(self, function: Callable[[], Any]) -> Any:
        future = self._engine.errands.add(function)
        self._wake()
        try:
            return future.result()
        finally:
            del future  # would hold an error, whose frames hold this one
