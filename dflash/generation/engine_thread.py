"""Engine thread: owns the device and runs the decoding loop for requests of other threads."""

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from traceback import clear_frames
from typing import TypeVar

from dflash.decode.drafting.drafter import Strategy
from dflash.decode.engine import Engine, Event
from dflash.decode.session import Session, Step
from dflash.errors import Cancelled, DFlashError, EngineFailed
from dflash.generation.completion import Completion, Delta
from dflash.generation.preparation import Preparation, PreparationJob
from dflash.kernels.gpu import device
from dflash.model.loading.forks import check_fork

log = logging.getLogger(__name__)
T = TypeVar("T")

Flush = Callable[[], object]

Sink = Callable[[Delta], Flush | None]
"""Takes what a step added to a completion. Called in the engine thread; must return quickly.

The returned function is called once after the step, also if several sinks return it: streams wake another thread together.
"""

StepObserver = Callable[[Sequence[Event], float], None]
"""Called in the engine thread after each step with its events and its duration in seconds; must return quickly."""

_FAILED = Step([], 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, "error")

_PAUSE = 0.001
"""Seconds between two checks that cancelled requests have ended; far below the latency of a step."""

_LOOK = 1.0
"""Seconds between two checks of a waiting thread that the engine thread still works on its request.

Only a safety net: the end of a request also wakes the thread that waits for it.
"""


class EngineThread:
    """Runs an engine in its own thread.

    Interrupts and slow clients affect only the waiting threads; they never interrupt a forward.

    engine: engine to run. After this only the new thread may step it.
    at_end: called when the thread ends.
    gpu: CUDA device number of the model; that GPU is current in the thread.
    observers: observers of all steps. One that raises an exception is logged and removed.
    """

    def __init__(self, engine: Engine, at_end: Callable[[], object] | None = None, gpu: int | None = None) -> None:
        self.engine, self._gpu = engine, gpu
        self._at_end = at_end or _nothing
        self.observers: list[StepObserver] = []
        self.error: BaseException | None = None
        self._closing = False
        self._pid = os.getpid()
        self._pulse: float | None = None
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._completions: dict[Session, tuple[Completion, Sink]] = {}
        self._broken: dict[Session, Exception] = {}
        self._preparation = Preparation(engine, partial(self._calls.put, _nothing), gpu)
        self._thread = threading.Thread(target=self._run, name="dflash-engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True while requests are accepted."""
        return not self._closing and self.error is None and self._thread.is_alive()

    @property
    def ended(self) -> bool:
        """True if the thread, and with it every request, has ended."""
        return not self._thread.is_alive()

    @property
    def sessions(self) -> list[Session]:
        """Sessions that wait or run. May be read in any thread; they may end at any time."""
        return list(self._completions)

    @property
    def step_age(self) -> float | None:
        """Seconds since the last step or call ended; None while the engine is idle."""
        pulse = self._pulse
        return None if pulse is None else time.monotonic() - pulse

    def check_caller(self) -> None:
        """Raise an error if a wait in this thread could never end.

        Raises DFlashError from the engine's own thread, and in a forked process, which has no engine thread.
        """
        check_fork(self._pid)
        if threading.current_thread() is self._thread:
            raise DFlashError(
                "called from the engine thread, which would wait for itself: observers, logits processors, "
                "recorders and functions given to call() can't use the LM"
            )

    def preparing(self, strategy: Strategy) -> PreparationJob:
        """Start loading the files and kernels of a strategy while decoding continues; return the job to wait for."""
        self.check_caller()
        with self._lock:
            self._check_alive()
        return self._preparation.begin(strategy)

    def prepare(self, strategy: Strategy) -> None:
        """Load the files and kernels of a strategy, so that its requests start without delay."""
        self.preparing(strategy).wait()

    def submit(self, completion: Completion, sink: Sink) -> None:
        """Start a completion.

        sink: called with a `Delta` after each step, the last time with `step.finish` set; see `Sink`.
        Raises RequestError, ContextOverflow, PoolExhausted if the completion can never be decoded.
        Raises QueueFull if too many sequences wait to start.
        Raises Cancelled if the engine thread is closing.
        Raises EngineFailed if the engine has failed.
        """
        self.submit_all([(completion, sink)])

    def submit_all(self, work: Sequence[tuple[Completion, Sink]]) -> None:
        """Start several completions with their sinks, or none of them; see `submit`."""
        self.check_caller()
        sessions = [completion.session for completion, _ in work]
        with self._lock:
            self._check_alive()
            self._completions.update({completion.session: (completion, sink) for completion, sink in work})
            try:
                self.engine.add_all(sessions)
            except BaseException:
                for session in sessions:
                    self._completions.pop(session, None)
                    if session.added_at is not None:  # added before an interrupt arrived
                        session.cancel()
                raise
        self._calls.put(_nothing)

    def holds(self, completion: Completion) -> bool:
        """Return True until the last `Delta` of a completion was passed to its sink."""
        return completion.session in self._completions and os.getpid() == self._pid and self._thread.is_alive()

    def cancel(self, completion: Completion) -> None:
        """Cancel a completion; its sink receives the end with the next step."""
        completion.session.cancel()
        if os.getpid() == self._pid:
            self._calls.put(_nothing)

    def wait_for(self, items: "queue.SimpleQueue[T]", completions: Sequence[Completion]) -> T:
        """Return the next item that the sinks of the given completions put into a queue."""
        while True:
            self.check_caller()
            open_ = any(map(self.holds, completions))
            try:
                return items.get(timeout=_LOOK) if open_ else items.get_nowait()
            except queue.Empty:
                if not open_:
                    raise EngineFailed(
                        "the engine stopped before this request ended; see the log of dflash.generation.engine_thread"
                    ) from None

    def wait_until_free(self, completions: Sequence[Completion]) -> None:
        """Wait until cancelled completions have ended; returns at once in the engine thread."""
        while threading.current_thread() is not self._thread and any(map(self.holds, completions)):
            time.sleep(_PAUSE)

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in the engine thread, between two steps, and return its result."""
        self.check_caller()
        future: Future[T] = Future()
        with self._lock:
            self._check_alive()
            self._calls.put(partial(self._resolve, future, function))
        try:
            return future.result()
        finally:
            del future  # breaks a reference cycle: an error refers to this frame

    def close(self, timeout: float | None = None) -> None:
        """End every completion, then the thread. Safe to call twice.

        timeout: seconds to wait for the running forward; None waits until it ends.
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
        return EngineFailed(f"the engine has failed and accepts no more requests: {type(error).__name__}: {error}")

    def _run(self) -> None:
        with ExitStack() as stack:
            try:
                stack.enter_context(device.on(self._gpu))
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
                call = self._calls.get(wait, self.engine.rereads.seconds_left if wait else None)
                self._pulse = time.monotonic()
                call()
                del call  # frees its result or error before the next wait
                wait = False
        except queue.Empty:
            return

    def _step(self) -> None:
        began = time.perf_counter()
        events = self.engine.step()
        self._notify(events, time.perf_counter() - began)
        _clear_errors(events)
        flushes: dict[Flush | None, None] = {}
        for session, step in events:
            held = self._completions.get(session)
            if held is not None:
                flushes[self._pass_on(session, *held, step)] = None
            if step.finish is not None:
                self._completions.pop(session, None)
        _flush(flushes)
        self._pulse = time.monotonic()

    def _notify(self, events: Sequence[Event], seconds: float) -> None:
        for observe in tuple(self.observers):
            try:
                observe(events, seconds)
            except Exception:
                log.exception("an observer of steps failed and is removed")
                self.observers.remove(observe)

    def _pass_on(self, session: Session, completion: Completion, sink: Sink, step: Step) -> Flush | None:
        """Call the sink of a completion and return what it returns; an exception in it ends only that completion."""
        try:
            if session in self._broken:
                raise self._broken[session]
            delta = completion.delta(step)
        except Exception as error:
            if self._broken.setdefault(session, error) is error:
                log.exception("a completion could not be detokenized; its request is cancelled")
            session.cancel()
            if step.finish is None:
                return None
            session.error = session.error or self._broken.pop(session)
            delta = Delta("", (), step._replace(finish="error"))
        try:
            return sink(delta)
        except Exception:
            log.exception("the consumer's callback failed; its request is cancelled")
            session.cancel()
            return None

    def _finish(self) -> None:
        """End all completions, close the engine and answer waiting calls, even if one of these steps fails."""
        with self._lock:
            self._closing = True
        for session in self._completions:
            session.cancel()
        try:
            while self._completions and self.engine.busy and self.error is None:
                self._step()
        except BaseException as error:
            log.exception("the engine failed while it closed")
            self.error = error
        self._give_up()
        try:
            self.engine.close()
        except BaseException:
            log.exception("the engine could not be closed cleanly")
        self._answer_calls(wait=False)
        self._at_end()
        self._pulse = None

    def _give_up(self) -> None:
        """End the completions that a failed engine left open."""
        for session, (completion, sink) in list(self._completions.items()):
            if session.error is None and self.error is not None:
                session.error = self._failed()
            _flush([self._pass_on(session, completion, sink, _FAILED)])
        self._completions.clear()

    def _resolve(self, future: "Future[T]", function: Callable[[], T]) -> None:
        try:
            if self.error is not None:
                raise self._failed()
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)
            del future  # breaks a reference cycle: the error refers to this frame


def _nothing() -> None:
    """Do nothing; an empty call that wakes the engine thread."""


def _flush(flushes: Iterable[Flush | None]) -> None:
    for flush in flushes:
        if flush is not None:
            flush()


def _clear_errors(events: Sequence[Event]) -> None:
    """Clear the frames of errors, which refer to sessions and the model: a reference cycle.

    Called before anything is passed on: sequences that fail together share an error, and the frames of threads that raise it
    must not be cleared. No caller may name an error, since frames of the error refer to their callers.
    """
    for error in {session.error for session, _ in events}:
        if error is not None:
            clear_frames(error.__traceback__)
