"""The thread that owns the device and runs the loop; everyone else sends it work and is told what comes of it."""

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from traceback import clear_frames
from typing import TypeVar

from dflash.decode.engine import Engine
from dflash.decode.session import Session, Step
from dflash.decode.strategy import Strategy
from dflash.errors import Cancelled, DFlashError
from dflash.serve.answer import Answer, Delta
from dflash.serve.prepare import Job, Preparation

log = logging.getLogger("dflash.worker")
T = TypeVar("T")

Sink = Callable[[Delta], None]

_FAILED = Step([], 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, "error")


class Worker:
    """Runs an engine in a thread of its own.

    Interrupts and slow clients stay with whoever waits: they never reach into the middle of a forward.

    Parameters
    ----------
    engine : Engine
        From here on only this thread steps it.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.error: BaseException | None = None
        self._closing = False
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._answers: dict[Session, tuple[Answer, Sink]] = {}
        self._preparation = Preparation(engine, partial(self._calls.put, _nothing))
        self._thread = threading.Thread(target=self._run, name="dflash-engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it takes work."""
        return not self._closing and self.error is None

    def preparing(self, strategy: Strategy) -> Job:
        """Begin to load what a strategy needs to go with the model, while texts go on; the job tells when that is done.

        Raises
        ------
        Cancelled
            If the worker is closing.
        PoolExhausted
            If too many others are being prepared.
        """
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
        Cancelled
            If the worker is closing.
        """
        with self._lock:
            self._check_alive()
            self._answers[answer.session] = (answer, sink)
            try:
                self.engine.add(answer.session)
            except BaseException:
                del self._answers[answer.session]
                raise
        self._calls.put(_nothing)

    def holds(self, answer: Answer) -> bool:
        """Whether an answer is still to be worked on, or about to be told its end."""
        return answer.session in self._answers

    def cancel(self, answer: Answer) -> None:
        """Ask for the end of an answer; its sink is told with the next step."""
        answer.session.cancel()
        self._calls.put(_nothing)

    def call(self, function: Callable[[], T]) -> T:
        """Run something in the engine's thread, between two steps, and return what it returns.

        Raises
        ------
        Cancelled
            If the worker is closing.
        """
        future: Future[T] = Future()
        with self._lock:
            self._check_alive()
            self._calls.put(partial(_resolve, future, function))
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
        with self._lock:
            self._closing = True
        self._calls.put(_nothing)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _check_alive(self) -> None:
        if self.error is not None:
            raise DFlashError(f"the engine has failed and takes no more work: {self.error}")
        if self._closing:
            raise Cancelled("the engine is shutting down")

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
        try:
            while True:
                self._calls.get(block=wait)()
                wait = False
        except queue.Empty:
            return

    def _step(self) -> None:
        for session, step in self.engine.step():
            answer, sink = self._answers[session]
            try:
                sink(answer.delta(step))
            except Exception:
                log.exception("whoever waits for an answer can't be told; it is cancelled")
                session.cancel()
            if step.finish is not None:
                del self._answers[session]
            if session.error is not None:
                # its frames hold the session, which holds it, and the model
                clear_frames(session.error.__traceback__)

    def _finish(self) -> None:
        """Give everything back and tell everyone."""
        with self._lock:
            self._closing = True
        for session in self._answers:
            session.cancel()
        try:
            while self._answers and self.engine.busy and self.error is None:
                self._step()
        finally:
            self._give_up()
            self.engine.close()
            self._answer_calls(wait=False)

    def _give_up(self) -> None:
        """Tell those whose answers an engine that failed has left behind."""
        for answer, sink in self._answers.values():
            sink(answer.delta(_FAILED))
        self._answers.clear()


def _nothing() -> None:
    """Wakes the thread."""


def _resolve(future: "Future[T]", function: Callable[[], T]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
        del future  # holds the error, whose frames hold this one
