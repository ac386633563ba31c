"""One loop that advances every session by a step."""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, suppress
from time import perf_counter
from typing import Any, NamedTuple

from dflash.decode.admission import admit, check, readmit, remember_origin
from dflash.decode.ahead import Ahead, look_ahead
from dflash.decode.draft import EMPTY
from dflash.decode.errands import Errands
from dflash.decode.handing import show
from dflash.decode.plan import Part, capture_of, plan
from dflash.decode.recovery import oversee
from dflash.decode.session import Session, Step
from dflash.decode.verify import Drawn, draw, verify, wait
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

    Chunks of some prompts share a forward with the decode rows of other sessions. Sessions join and leave between steps,
    first come, first served; one that does not fit waits for others to end. All methods but `add` belong to one thread at a
    time.

    Parameters
    ----------
    model : Model
        Belongs to the engine while it steps.
    chunk : int
        Most prompt tokens in a forward, over all sessions; at least the model's `cut`.
    max_active : int, optional
        Most sessions that run at a time; as many as the model has slots if None.

    Attributes
    ----------
    errands : Errands
        What else uses the model: one piece is run before each step.
    """

    def __init__(self, model: Any, *, chunk: int = CHUNK, max_active: int | None = None) -> None:
        self.model = model
        self.chunk = max(model.cut, min(chunk, model.rows))
        slots = min(model.pools.slots, model.rows)
        self.max_active = slots if max_active is None else max(1, min(max_active, slots))
        self._added: deque[Session] = deque()
        self._waiting: deque[Session] = deque()
        self._active: list[Session] = []
        self._events: list[Event] = []
        self._ahead: Ahead | None = None
        self.errands = Errands()

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
        return bool(self._active or self._added or self._waiting or self.errands)

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
        """Run one errand, if there is any, then advance every session once.

        Returns
        -------
        list of Event
            One for each session that changed; what fails is told here, too, and never raised. Each step is the last entry of
            its session's `steps`.
        """
        self._events = []
        self.errands.run_one()
        try:
            self._end_cancelled()
            self._admit()
            if self._active:
                self._advance()
        except BaseException:
            self._cancel_all()
            raise
        return self._events

    def run(self, sessions: Iterable[Session]) -> Generator[Event, None, None]:
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
                self._events = []

    def stream(self, session: Session) -> Iterator[Step]:
        """Add one session and yield its steps.

        Raises
        ------
        Exception
            What the session failed with, after its last step.
        """
        with closing(self.run([session])) as events:
            for event in events:
                yield event.step
        if session.error is not None:
            raise session.error

    def close(self) -> None:
        """Cancel everything, give back what it held, and let go of what was loaded to go with the model."""
        self.errands.close()
        try:
            self._cancel_all()
        finally:
            self.model.companions.close()

    def _cancel_all(self) -> None:
        self._waiting += self._added
        self._added.clear()
        for session in (*self._active, *self._waiting):
            session.cancel()
        self._end_cancelled()
        self._events = []

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

    def _advance(self) -> None:
        began = perf_counter()
        ahead, self._ahead = self._ahead, None
        parts = ahead.take(self._active) if ahead is not None else []
        out = ahead.out if parts else None
        parts = parts or plan(self.model, self._active, self.chunk, self._fail)
        if not parts:
            return
        proposed = perf_counter()
        try:
            out = out or self.model.forward([part.span for part in parts], capture=capture_of(parts))
            asking = [(part.draft, part.session, part.start) for part in parts if not part.n_prefill]
            drawn = draw(out.logits, asking)
            self._ahead = look_ahead(self.model, parts, self._active, out)
            wait(drawn)
        except Exception as error:
            for part in parts:
                self._end(part.session, "error", error)
            return
        shared = Step([], batch=parts[-1].stop, propose=proposed - began, forward=perf_counter() - proposed)
        found = iter(drawn)
        for part in parts:
            try:
                if part.n_prefill:
                    self._read(part, out, shared)
                else:
                    self._decode(part, out, next(found), shared)
            except Exception as error:
                self._end(part.session, "error", error)

    def _read(self, part: Part, out: Forward, shared: Step) -> None:
        session = part.session
        session.n_read += part.n_prefill
        session.drafting.observe(out, slice(part.start, part.stop))
        if session.n_read == session.n_prompt - 1:
            remember_origin(session)
        self._tell(session, shared._replace(prefilled=part.n_prefill))

    def _decode(self, part: Part, out: Forward, drawn: Drawn | None, shared: Step) -> None:
        session, began, n_before = part.session, perf_counter(), len(part.session.interventions)
        # rows that decode come first in a forward, and they alone want logits
        ruling = oversee(session, verify(part.draft, out.logits[part.start : part.stop], session, drawn))
        kept = show(session, ruling)
        verified = perf_counter()
        if ruling.restart:
            readmit(self.model, session)
        else:
            session.state.commit(kept.rows)
            session.take(kept)
            if kept.finish is None and self._ahead is not None:
                self._ahead.adopt(session)
            elif kept.finish is None:
                session.drafting.observe(out, [part.start + row for row in kept.rows])
        step = shared._replace(
            tokens=kept.tokens,
            drafted=kept.drafted,
            accepted=kept.accepted,
            verify=verified - began,
            commit=perf_counter() - verified,
            finish=kept.finish,
            draft=part.draft if kept.drafted else EMPTY,
            rows=kept.rows,
            injected=kept.injected,
            note=" ".join(map(str, session.interventions[n_before:])),
            by=getattr(session.drafting, "by", ""),
        )
        if kept.finish is not None:
            self._end(session, kept.finish, step=step)
        elif ruling.hold:
            session.held.append(step)
        else:
            self._tell(session, step)

    def _fail(self, session: Session, error: Exception) -> None:
        self._end(session, "error", error)

    def _tell(self, session: Session, step: Step) -> None:
        """Hand a step on, after those that were held back."""
        session.record(step)
        told, session.held = [*session.held, step], []
        session.steps += told
        self._events += [Event(session, each) for each in told]

    def _end(self, session: Session, reason: str, error: Exception | None = None, *, step: Step | None = None) -> None:
        """Give back what the session holds, then tell."""
        with suppress(ValueError):
            self._active.remove(session)
        with suppress(ValueError):
            self._waiting.remove(session)
        try:
            session.release()
            session.record(step or Step([], finish=reason))
        except Exception as failure:
            reason, error, step = "error", error or failure, None
        session.recorder = None
        session.error, session.ended_at = error, perf_counter()
        self._tell(session, step or Step([], finish=reason))
        session.finish_reason = reason
