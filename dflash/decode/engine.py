"""One loop that advances every session by a step."""

from collections import deque
from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import Any, NamedTuple

from dflash.decode.admission import admit, check
from dflash.decode.batch import Part, capture_of, plan
from dflash.decode.session import Session, Step
from dflash.decode.verify import verify
from dflash.errors import PoolExhausted
from dflash.model.batch import Forward

CHUNK = 512
"""Prompt tokens in a forward, unless told otherwise."""


class Event(NamedTuple):
    """A session changed."""

    session: Session
    step: Step


class Engine:
    """Advances sessions together: propose, one forward for all, verify each, commit, let the drafters observe.

    Chunks of some prompts share a forward with the decode rows of other sessions. Sessions join and leave between steps, first
    come, first served; one that does not fit waits for others to end. All methods but `add` belong to one thread at a time.

    Parameters
    ----------
    model : Model
        Belongs to the engine while it steps.
    chunk : int
        Most prompt tokens in a forward, over all sessions.
    max_active : int, optional
        Most sessions that run at a time; as many as the model has slots if None.
    """

    def __init__(self, model: Any, *, chunk: int = CHUNK, max_active: int | None = None) -> None:
        self.model = model
        self.chunk = max(1, min(chunk, model.rows))
        slots = min(model.pools.slots, model.rows)
        self.max_active = slots if max_active is None else max(1, min(max_active, slots))
        self._added: deque[Session] = deque()
        self._waiting: deque[Session] = deque()
        self._active: list[Session] = []
        self._events: list[Event] = []

    @property
    def active(self) -> int:
        """Sessions that hold memory."""
        return len(self._active)

    @property
    def waiting(self) -> int:
        """Sessions that do not yet."""
        return len(self._added) + len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._active or self._added or self._waiting)

    def add(self, session: Session) -> Session:
        """Let a session wait for its turn; from any thread.

        Raises
        ------
        RequestError, ContextOverflow, PoolExhausted
            If it can never be worked on.
        """
        check(self.model, session)
        session.added_at = perf_counter()
        self._added.append(session)
        return session

    def step(self) -> list[Event]:
        """Advance every session once.

        Returns
        -------
        list of Event
            One for each session that changed; what fails is told here, too, and never raised. Each step is the last entry of
            its session's `steps`.
        """
        self._events = []
        try:
            self._end_cancelled()
            self._admit()
            if self._active:
                self._advance()
        except BaseException:
            self.close()
            raise
        return self._events

    def run(self, sessions: Iterable[Session]) -> Iterator[Event]:
        """Add sessions and yield their events until all have finished. Closing the iterator cancels those that have not."""
        told: dict[Session, int] = {}
        try:
            for session in sessions:
                told[self.add(session)] = 0
            while told:
                for session in list(told):
                    while told[session] < len(session.steps):
                        told[session] += 1
                        yield Event(session, session.steps[told[session] - 1])
                    if session.finished:
                        del told[session]
                if told:
                    self.step()
        finally:
            for session in told:
                session.cancel()
            if told:
                self._end_cancelled()

    def stream(self, session: Session) -> Iterator[Step]:
        """Add one session and yield its steps.

        Raises
        ------
        Exception
            What the session failed with, after its last step.
        """
        for event in self.run([session]):
            yield event.step
        if session.error is not None:
            raise session.error

    def close(self) -> None:
        """Cancel everything and give back what it held."""
        self._waiting += self._added
        self._added.clear()
        for session in (*self._active, *self._waiting):
            session.cancel()
        self._end_cancelled()

    def _end_cancelled(self) -> None:
        while self._added:
            self._waiting.append(self._added.popleft())
        for session in [session for session in (*self._active, *self._waiting) if session.cancelled]:
            self._end(session, "cancelled")

    def _admit(self) -> None:
        while self._waiting and len(self._active) < self.max_active:
            session = self._waiting[0]
            if session.limit == session.n_prompt:
                self._end(session, "length")
                continue
            try:
                admit(self.model, session)
            except PoolExhausted as error:
                if self._active:
                    return
                self._end(session, "error", error)
            except Exception as error:
                self._end(session, "error", error)
            else:
                session.started_at = perf_counter()
                self._active.append(self._waiting.popleft())
    ...
