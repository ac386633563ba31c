"""One loop that advances every session by a step."""

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from time import perf_counter
from typing import Any, NamedTuple

from dflash.decode.drafting.draft import EMPTY
from dflash.decode.recoveries.apply import apply_recoveries
from dflash.decode.recoveries.emit import show
from dflash.decode.scheduling.admission import admit, check, readmit, save_prompt_snapshot
from dflash.decode.scheduling.batch_plan import BatchPart, capture_of, plan
from dflash.decode.scheduling.errands import Errands
from dflash.decode.scheduling.overlap import OverlappedStep, launch_next
from dflash.decode.scheduling.waiting import WaitingQueue
from dflash.decode.session import Session, Step
from dflash.decode.verify import Samples, sample_rows, verify, wait
from dflash.errors import EngineFailed, PoolExhausted, QueueFull, RequestError
from dflash.kernels.gpu.lost import is_lost
from dflash.model.batch import Forward

CHUNK = 512
"""Prompt tokens in a forward, unless told otherwise."""

MAX_FAILURES = 3
"""Forwards in a row that may fail before the engine ends.

One or two may be the fault of what was in them; three, with no good one in between, are the fault of the model or its
device.
"""

_N_TRIED = 64
"""Waiting sessions that are tried in a step, while memory is too scarce for those before them: bounds the time of a step."""


class Event(NamedTuple):
    """A session changed."""

    session: Session
    step: Step


class Engine:
    """Advances sessions together: propose, one forward for all, verify each, commit, let the drafters observe.

    Chunks of some prompts share a forward with the decode rows of other sessions. Sessions join and leave between steps.
    The groups of waiting sessions take turns; within a group the oldest comes first. A session that does not fit memory
    waits for others to end, and a bounded number of later ones may start before it. All methods but `add` and `add_all`
    belong to one thread at a time.

    A session that fails ends alone. A lost device, or `MAX_FAILURES` failed forwards in a row, ends the engine: every
    session ends with `EngineFailed`, and so does every later `add` and `step`.

    Parameters
    ----------
    model : Model
        Belongs to the engine while it steps.
    chunk : int
        Most prompt tokens in a forward, over all sessions; at least the model's `cut`.
    max_active : int, optional
        Most sessions that run at a time; as many as the model has slots if None.
    max_waiting : int, optional
        Most sessions that wait while no other may start; None is no bound.

    Attributes
    ----------
    errands : Errands
        What else uses the model: one piece is run before each step.
    """

    def __init__(
        self, model: Any, *, chunk: int = CHUNK, max_active: int | None = None, max_waiting: int | None = None
    ) -> None:
        self.model = model
        self.chunk = max(model.chunk_alignment, min(chunk, model.max_rows))
        slots = min(model.pools.slots, model.max_rows)
        self.max_active = slots if max_active is None else max(1, min(max_active, slots))
        self.max_waiting = max_waiting
        self._added: deque[Session] = deque()
        self._waiting = WaitingQueue()
        self._active: list[Session] = []
        self._events: list[Event] = []
        self._overlapped: OverlappedStep | None = None
        self.errands = Errands()
        self._n_ended = 0
        self._n_failures = 0
        self._failure: str | None = None

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
        """Whether there is anything to do; a failed engine always has its failure to raise."""
        return bool(self._active or self._added or self._waiting or self.errands or self._failure)

    def add(self, session: Session) -> Session:
        """Let a session wait for its turn; from any thread.

        Raises
        ------
        RequestError, ContextOverflow, PoolExhausted
            If it can never be worked on.
        QueueFull
            If too many sessions wait.
        EngineFailed
            If the engine has ended.
        """
        self.add_all([session])
        return session

    def add_all(self, sessions: Sequence[Session]) -> None:
        """Let several sessions wait for their turns, or none of them; from any thread.

        Raises
        ------
        RequestError, ContextOverflow, PoolExhausted, QueueFull, EngineFailed
            As `add` does; no session was added then.
        """
        if self._failure is not None:
            raise EngineFailed(self._failure)
        if len(set(sessions)) != len(sessions):
            raise RequestError("session: was given twice; make a new one for each text")
        for session in sessions:
            check(self.model, session)
        self._check_queue(len(sessions))
        now = perf_counter()
        for session in sessions:
            session.added_at = now
        self._added.extend(sessions)

    def _check_queue(self, n: int) -> None:
        if self.max_waiting is None:
            return
        if n > self.max_waiting + self.max_active:
            most = self.max_waiting + self.max_active
            raise RequestError(f"sessions: at most {most} fit the queue and the active ones together, got {n} at once")
        free = max(0, self.max_active - len(self._active))
        if self.waiting + n > self.max_waiting + free:
            raise QueueFull(f"{self.waiting} texts wait to start, at most {self.max_waiting} may; try again later")

    def step(self) -> list[Event]:
        """Run one errand, if there is any, then advance every session once.

        Returns
        -------
        list of Event
            One for each session that changed, also for each that failed. Each step is the last entry of its session's
            `steps`.

        Raises
        ------
        EngineFailed
            If the engine has ended in an earlier step.
        """
        if self._failure is not None:
            raise EngineFailed(self._failure)
        self._events = []
        self.errands.run_one()
        try:
            self._end_cancelled()
            self._admit()
            if self._active:
                self._advance()
            if self._failure is not None:
                self._end_all(self._failure)
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
            self.model.attachments.close()

    def _cancel_all(self) -> None:
        self._take_added()
        for session in (*self._active, *self._waiting):
            session.cancel()
        self._end_cancelled()
        self._events = []

    def _end_all(self, failure: str) -> None:
        self._take_added()
        for session in (*self._active, *self._waiting):
            self._end(session, "error", EngineFailed(failure))

    def _take_added(self) -> None:
        while self._added:
            self._waiting.append(self._added.popleft())

    def _end_cancelled(self) -> None:
        self._take_added()
        for session in [session for session in (*self._active, *self._waiting) if session.cancelled]:
            self._end(session, "cancelled")

    def _admit(self) -> None:
        while self._waiting and len(self._active) < self.max_active and self._failure is None:
            if not self._admit_one():
                return

    def _admit_one(self) -> bool:
        """Start or end the first waiting session that can be; false if memory is too scarce for all that were tried."""
        overtaken = []
        for ticket in self._waiting.in_turn(_N_TRIED):
            session = ticket.session
            if session.max_length == session.n_prompt:
                self._end(session, "length")
                return True
            pools = self.model.pools
            memory = self._n_ended, pools.free_pages, pools.free_slots
            if ticket.refused_at is None or any(now > then for now, then in zip(memory, ticket.refused_at, strict=True)):
                try:
                    admit(self.model, session)
                except PoolExhausted as error:
                    if not self._active:
                        self._end(session, "error", error)
                        return True
                    ticket.refused_at = memory
                except Exception as error:
                    self._end(session, "error", error)
                    return True
                else:
                    self._waiting.start(session)
                    session.started_at = perf_counter()
                    self._active.append(session)
                    for other in overtaken:
                        other.n_overtaken += 1
                    return True
            if ticket.overdue:
                return False
            overtaken.append(ticket)
        return False

    def _advance(self) -> None:
        began = perf_counter()
        overlapped, self._overlapped = self._overlapped, None
        try:
            parts = overlapped.take(self._active) if overlapped is not None else []
            out = overlapped.out if parts else None
            parts = parts or plan(self.model, self._active, self.chunk, self._fail)
        except Exception as error:
            self._fail_forward(list(self._active), error, counted=False)
            return
        if not parts:
            return
        proposed = perf_counter()
        in_forward = True
        try:
            out = out or self.model.forward([part.span for part in parts], capture=capture_of(parts))
            asking = [(part.draft, part.session, part.start) for part in parts if not part.n_prefill]
            samples = sample_rows(out.logits, asking)
            in_forward = False  # a drafter that can't say what it will do says nothing about the model
            self._overlapped = launch_next(self.model, parts, self._active, out)
            in_forward = True
            wait(samples)
        except Exception as error:
            self._fail_forward([part.session for part in parts], error, counted=in_forward)
            return
        self._n_failures = 0
        shared = Step([], batch=parts[-1].stop, propose=proposed - began, forward=perf_counter() - proposed)
        found = iter(samples)
        for part in parts:
            try:
                if part.n_prefill:
                    self._read(part, out, shared)
                else:
                    self._decode(part, out, next(found), shared)
            except Exception as error:
                self._end(part.session, "error", error)

    def _fail_forward(self, sessions: Sequence[Session], error: Exception, *, counted: bool = True) -> None:
        """End the sessions of a forward that failed; also the engine, if too many forwards failed in a row."""
        for session in sessions:
            self._end(session, "error", error)
        self._n_failures += counted
        if self._n_failures >= MAX_FAILURES:
            self._give_up(f"{MAX_FAILURES} forwards in a row failed, the last one with {type(error).__name__}: {error}")

    def _give_up(self, reason: str) -> None:
        if self._failure is None:
            self._failure = f"the engine has failed and takes no more work: {reason}"

    def _read(self, part: BatchPart, out: Forward, shared: Step) -> None:
        session = part.session
        session.n_prefilled += part.n_prefill
        session.drafter_state.observe(out, slice(part.start, part.stop))
        if session.n_prefilled == session.n_prompt - 1:
            save_prompt_snapshot(session)
        self._emit(session, shared._replace(prefilled=part.n_prefill))

    def _decode(self, part: BatchPart, out: Forward, samples: Samples | None, shared: Step) -> None:
        session, began, n_before = part.session, perf_counter(), len(part.session.interventions)
        # rows that decode come first in a forward, and they alone want logits
        decision = apply_recoveries(session, verify(part.draft, out.logits[part.start : part.stop], session, samples))
        accepted = show(session, decision)
        verified = perf_counter()
        if decision.restart:
            readmit(self.model, session)
        else:
            session.state.commit(accepted.rows)
            session.append(accepted)
            if accepted.finish is None and self._overlapped is not None:
                self._overlapped.accept(session)
            elif accepted.finish is None:
                session.drafter_state.observe(out, [part.start + row for row in accepted.rows])
        step = shared._replace(
            tokens=accepted.tokens,
            drafted=accepted.drafted,
            accepted=accepted.n_accepted,
            verify=verified - began,
            commit=perf_counter() - verified,
            finish=accepted.finish,
            draft=part.draft if accepted.drafted else EMPTY,
            rows=accepted.rows,
            injected=accepted.injected,
            note=" ".join(map(str, session.interventions[n_before:])),
            by=getattr(session.drafter_state, "by", ""),
        )
        if accepted.finish is not None:
            self._end(session, accepted.finish, step=step)
        elif decision.hold:
            session.held_steps.append(step)
        else:
            self._emit(session, step)

    def _fail(self, session: Session, error: Exception) -> None:
        self._end(session, "error", error)

    def _emit(self, session: Session, step: Step) -> None:
        """Hand a step on, after those that were held back."""
        session.record(step)
        told, session.held_steps = [*session.held_steps, step], []
        session.steps += told
        self._events += [Event(session, each) for each in told]

    def _end(self, session: Session, reason: str, error: Exception | None = None, *, step: Step | None = None) -> None:
        """Give back what the session holds, then pass its last step on. Never raises, and never formats the session."""
        if session in self._active:
            self._active.remove(session)
        self._waiting.remove(session)
        self._n_ended += 1
        try:
            session.release()
            session.record(step or Step([], finish=reason))
        except Exception as failure:
            reason, error, step = "error", error or failure, None
        if is_lost(error):
            self._give_up(f"the device is lost: {error}")
        session.recorder = None
        session.error, session.ended_at = error, perf_counter()
        self._emit(session, step or Step([], finish=reason))
        session.finish_reason = reason
