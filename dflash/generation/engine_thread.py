"""The thread that owns the device and runs the loop; other threads send it work and wait for what comes of it."""

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from traceback import clear_frames
from typing import TypeVar

from dflash.decode.drafting.drafter import Strategy
from dflash.decode.engine import Engine
from dflash.decode.session import Session, Step
from dflash.errors import Cancelled, DFlashError, EngineFailed
from dflash.generation.completion import Answer, Delta
from dflash.generation.preparation import Preparation, PreparationJob

log = logging.getLogger("dflash.worker")
T = TypeVar("T")

Sink = Callable[[Delta], None]

_FAILED = Step([], 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, "error")

_PAUSE = 0.001
"""Seconds between two looks at whether cancelled answers are gone: far below a step."""

_LOOK = 1.0
"""Seconds between two looks of a waiting thread at whether the engine's thread still works for it.

A safety net alone: whatever ends an answer also wakes the thread that waits for it.
"""


class Worker:
    """Runs an engine in a thread of its own.

    Interrupts and slow clients stay with whoever waits: they never reach into the middle of a forward.

    Parameters
    ----------
    engine : Engine
        From here on only this thread steps it.

    Attributes
    ----------
    error : BaseException or None
        What ended the engine before its time.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.error: BaseException | None = None
        self._closing = False
        self._pid = os.getpid()
        self._pulse: float | None = None
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._answers: dict[Session, tuple[Answer, Sink]] = {}
        self._preparation = Preparation(engine, partial(self._calls.put, _nothing))
        self._thread = threading.Thread(target=self._run, name="dflash-engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it takes work."""
        return not self._closing and self.error is None and self._thread.is_alive()

    @property
    def ended(self) -> bool:
        """Whether the thread has ended, all answers with it."""
        return not self._thread.is_alive()

    @property
    def step_age(self) -> float | None:
        """Seconds since the last step or call ended, while there is work; None while there is none."""
        pulse = self._pulse
        return None if pulse is None else time.monotonic() - pulse

    def check_caller(self) -> None:
        """Refuse a thread that could only wait for ever.

        Raises
        ------
        DFlashError
            From the engine's own thread, and in a forked process, which has no engine thread.
        """
        if os.getpid() != self._pid:
            raise DFlashError(
                f"the model was loaded in process {self._pid}, this is a fork of it: load the model in this process"
            )
        if threading.current_thread() is self._thread:
            raise DFlashError(
                "this was called from the engine's own thread, which would wait for itself: observers, processors, "
                "recorders and functions given to call() can't use the LM"
            )

    def preparing(self, strategy: Strategy) -> PreparationJob:
        """Begin to load what a strategy needs to go with the model, while texts go on; the job tells when that is done.

        Raises
        ------
        Cancelled
            If the worker is closing.
        PoolExhausted
            If too many others are being prepared.
        DFlashError
            From a thread that could only wait for ever.
        """
        self.check_caller()
        with self._lock:
            self._check_alive()
        return self._preparation.begin(strategy)

    def prepare(self, strategy: Strategy) -> None:
        """Load what a strategy needs to go with the model; answers that want it then start at once.

        Parameters
        ----------
        strategy : Strategy
            Of answers to come.

        Raises
        ------
        DFlashError
            If it can't be used with this model; one sentence says why.
        """
        self.preparing(strategy).wait()

    def submit(self, answer: Answer, sink: Sink) -> None:
        """Start an answer.

        Parameters
        ----------
        answer : Answer
            What to work on, next to everything else.
        sink : callable
            Called with a `Delta` after each of its steps, in the engine's thread, until one says `step.finish`. It must be
            quick.

        Raises
        ------
        RequestError, ContextOverflow, PoolExhausted
            If the answer can never be worked on.
        QueueFull
            If too many texts wait to start.
        Cancelled
            If the worker is closing.
        EngineFailed
            If the engine has failed.
        """
        self.submit_all([(answer, sink)])

    def submit_all(self, work: Sequence[tuple[Answer, Sink]]) -> None:
        """Start several answers, or none of them.

        Parameters
        ----------
        work : sequence of (Answer, callable)
            Each as `submit` takes them.

        Raises
        ------
        DFlashError
            As `submit` does; no answer was started then.
        """
        self.check_caller()
        sessions = [answer.session for answer, _ in work]
        with self._lock:
            self._check_alive()
            self._answers.update({answer.session: (answer, sink) for answer, sink in work})
            try:
                self.engine.add_all(sessions)
            except BaseException:
                for session in sessions:
                    self._answers.pop(session, None)
                    if session.added_at is not None:  # an interrupt came after the checks
                        session.cancel()
                raise
        self._calls.put(_nothing)

    def holds(self, answer: Answer) -> bool:
        """Whether an answer is still to be worked on, or its end still to be passed on."""
        return answer.session in self._answers and os.getpid() == self._pid and self._thread.is_alive()

    def cancel(self, answer: Answer) -> None:
        """Ask for the end of an answer; its sink gets it with the next step."""
        answer.session.cancel()
        if os.getpid() == self._pid:
            self._calls.put(_nothing)

    def wait_for(self, items: "queue.SimpleQueue[T]", answers: Sequence[Answer]) -> T:
        """Return the next item that the sinks of some answers put into a queue.

        Raises
        ------
        EngineFailed
            If no item can come any more.
        DFlashError
            From a thread that could only wait for ever.
        """
        while True:
            self.check_caller()
            open_ = any(map(self.holds, answers))
            try:
                return items.get(timeout=_LOOK) if open_ else items.get_nowait()
            except queue.Empty:
                if not open_:
                    raise EngineFailed("the engine has ended without an end of this text; its log says why") from None

    def wait_until_free(self, answers: Sequence[Answer]) -> None:
        """Wait until the worker has let go of answers that were cancelled; the engine's own thread does not wait."""
        while threading.current_thread() is not self._thread and any(map(self.holds, answers)):
            time.sleep(_PAUSE)

    def call(self, function: Callable[[], T]) -> T:
        """Run something in the engine's thread, between two steps, and return what it returns.

        Raises
        ------
        Cancelled
            If the worker is closing.
        EngineFailed
            If the engine has failed.
        DFlashError
            From a thread that could only wait for ever.
        """
        self.check_caller()
        future: Future[T] = Future()
        with self._lock:
            self._check_alive()
            self._calls.put(partial(self._resolve, future, function))
        try:
            return future.result()
        finally:
            del future  # would hold an error, whose frames hold this one

    def close(self, timeout: float | None = None) -> None:
        """End every answer, then the thread; safe to call twice.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait for the forward that runs now.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closing = True
        self._calls.put(_nothing)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _check_alive(self) -> None:
        if self.error is not None:
            raise self._failed()
        if self._closing:
            raise Cancelled("the engine is shutting down")

    def _failed(self) -> EngineFailed:
        error = self.error
        if isinstance(error, EngineFailed):
            return EngineFailed(str(error))
        return EngineFailed(f"the engine has failed and takes no more work: {type(error).__name__}: {error}")

    def _run(self) -> None:
        try:
            while not self._closing:
                self._answer_calls(wait=not self.engine.busy)
                if not self._closing:
                    self._step()
        except BaseException as error:
            log.exception("the engine failed")
            self.error = error
        finally:
            self._finish()

    def _answer_calls(self, *, wait: bool) -> None:
        if wait:
            self._pulse = None
        try:
            while True:
                call = self._calls.get(block=wait)
                self._pulse = time.monotonic()
                call()
                del call  # would hold its result, or an error, while the next one is waited for
                wait = False
        except queue.Empty:
            return

    def _step(self) -> None:
        for session, step in self.engine.step():
            held = self._answers.get(session)
            if held is not None:
                self._pass_on(session, *held, step)
            if step.finish is not None:
                self._answers.pop(session, None)
            if session.error is not None:
                # its frames hold the session, which holds it, and the model
                clear_frames(session.error.__traceback__)
        self._pulse = time.monotonic()

    def _pass_on(self, session: Session, answer: Answer, sink: Sink, step: Step) -> None:
        """Call the sink of an answer; what it raises ends that answer alone."""
        try:
            delta = answer.delta(step)
        except Exception as error:
            log.exception("an answer can't be turned into text; it is cancelled")
            session.cancel()
            if step.finish is None:
                return
            session.error = session.error or error
            delta = Delta("", (), step._replace(finish="error"))
        try:
            sink(delta)
        except Exception:
            log.exception("the sink of an answer failed; the answer is cancelled")
            session.cancel()

    def _finish(self) -> None:
        """Give everything back and end whatever waits, even if a part of that fails."""
        with self._lock:
            self._closing = True
        for session in self._answers:
            session.cancel()
        try:
            while self._answers and self.engine.busy and self.error is None:
                self._step()
        except BaseException as error:
            log.exception("the engine failed while it closed")
            self.error = error
        self._give_up()
        try:
            self.engine.close()
        except BaseException:
            log.exception("the engine could not be closed in order")
        self._answer_calls(wait=False)
        self._pulse = None

    def _give_up(self) -> None:
        """End the answers that an engine that failed has left behind."""
        for session, (answer, sink) in list(self._answers.items()):
            if session.error is None and self.error is not None:
                session.error = self._failed()
            self._pass_on(session, answer, sink, _FAILED)
        self._answers.clear()

    def _resolve(self, future: "Future[T]", function: Callable[[], T]) -> None:
        try:
            if self.error is not None:
                raise self._failed()
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)
            del future  # holds the error, whose frames hold this one


def _nothing() -> None:
    """Wakes the thread."""
