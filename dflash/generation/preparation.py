"""Preparation of strategies beside the engine: load files and compile kernels while decoding continues."""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from typing import TypeVar

from dflash.decode.drafting.drafter import Drafter, Nothing, Strategy, is_prepared, prepare_in_parts
from dflash.decode.engine import Engine
from dflash.decode.scheduling.admission import check_drafts
from dflash.errors import DFlashError, PoolExhausted
from dflash.generation.refusals import Refused, anew
from dflash.kernels.gpu import device

_log = logging.getLogger(__name__)

MAX_JOBS = 16
"""Maximum strategies in preparation at the same time; each has a thread, which may wait for a download."""

MAX_WAITING = 64
"""Maximum requests of a server that wait for such strategies; further ones are refused with PoolExhausted."""

_END = object()

T = TypeVar("T")


class PreparationJob:
    """A drafter in preparation; several threads and coroutines may wait for it."""

    def __init__(self, crowd: threading.Semaphore | None = None) -> None:
        self._crowd = crowd
        self._ended: Future[None] = Future()
        self._ended.set_running_or_notify_cancel()  # a cancelled waiter must not cancel the job
        self._error: BaseException | None = None

    @classmethod
    def done(cls, error: BaseException | None = None) -> "PreparationJob":
        """Return a job that has already ended."""
        job = cls()
        job.end(error)
        return job

    @property
    def is_ready(self) -> bool:
        """True if the drafter is prepared."""
        return self._ended.done() and self._error is None

    def end(self, error: BaseException | None = None) -> None:
        """Mark the job as ended and wake all waiters."""
        self._error = anew(error) if isinstance(error, DFlashError) else error
        self._ended.set_result(None)

    def wait(self) -> None:
        """Wait until the drafter is prepared; raise the error if it can't be."""
        self._ended.result()
        self._raise()

    async def arrive(self) -> None:
        """Wait as `wait` does, in a coroutine that may be cancelled."""
        if self._crowd is not None and not self._ended.done():
            if not self._crowd.acquire(blocking=False):
                raise PoolExhausted(f"{MAX_WAITING} requests already wait for drafts in preparation; try again later")
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
    """Prepares each drafter once, even if several requests need it at the same time.

    Each job has a thread that downloads, opens and checks files and compiles kernels. Work on the state of the model runs in
    the engine thread, in short pieces between steps (`Engine.errands`).
    """

    def __init__(self, engine: Engine, wake: Callable[[], None], gpu: int | None = None) -> None:
        self._engine, self._wake, self._gpu = engine, wake, gpu
        self._jobs: dict[Drafter, PreparationJob] = {}
        self._lock, self._errands = threading.Lock(), threading.Lock()
        self._crowd = threading.Semaphore(MAX_WAITING)
        self._refused = Refused()

    def begin(self, strategy: Strategy) -> PreparationJob:
        """Start preparing the drafter of a strategy, or return the job that already does."""
        drafter = strategy.drafter
        check_drafts(self._engine.model, strategy)
        if type(drafter) is Nothing or is_prepared(drafter, self._engine.model):
            return PreparationJob.done()
        refusal = self._refused.error_of(drafter)
        if refusal is not None:
            return PreparationJob.done(refusal)
        with self._lock:
            if drafter in self._jobs:
                return self._jobs[drafter]
            if len(self._jobs) >= MAX_JOBS:
                raise PoolExhausted(f"{len(self._jobs)} strategies are already being prepared; try again later")
            job = self._jobs[drafter] = PreparationJob(self._crowd)
        threading.Thread(target=self._run, args=(drafter, job), name="dflash-prepare", daemon=True).start()
        return job

    def _run(self, drafter: Drafter, job: PreparationJob) -> None:
        """Run a job to its end. Never raises."""
        failure: BaseException | None = None
        try:
            with device.on(self._gpu):
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
                _log.info("%r runs without %r: %s", drafter, part, error)
        files = self._refused.files(drafter)
        try:
            self._work(drafter)
        except DFlashError as error:
            self._refused.add(drafter, error, files)
            raise

    def _part(self, drafter: Drafter) -> None:
        """Prepare a part of a composite drafter, or wait for the job that does.

        No deadlock is possible: a job waits only for its own parts.
        """
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
            with self._errands:  # one at a time: the first drafter's measurements serve all
                while going:
                    going = self._in_engine(partial(next, pieces, _END)) is not _END

    def _in_engine(self, function: Callable[[], T]) -> T:
        future = self._engine.errands.add(function)
        self._wake()
        try:
            return future.result()
        finally:
            del future  # breaks a reference cycle: an error refers to this frame
