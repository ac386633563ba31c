"""The engine: one loop that advances all sessions by a step."""

from bisect import insort
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from time import perf_counter
from typing import NamedTuple

from dflash.decode.drafting.drafter import end_step
from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.recoveries.apply import Decision, apply_recoveries
from dflash.decode.recoveries.emit import show
from dflash.decode.scheduling.admission import check, check_queue, readmit, save_prompt_snapshot
from dflash.decode.scheduling.batch_plan import BatchPart, drafter_groups, drafter_states_of, plan
from dflash.decode.scheduling.draft_budget import DraftBudget
from dflash.decode.scheduling.errands import Errands
from dflash.decode.scheduling.memory import HEADROOM, reserve_step, set_aside
from dflash.decode.scheduling.overlap import Launched, OverlappedStep, launch, launch_next
from dflash.decode.scheduling.prompt_scores import score
from dflash.decode.scheduling.prompt_share import PromptShare
from dflash.decode.scheduling.reread import Reread, RereadQueue
from dflash.decode.scheduling.saved_inside import observe_prompt
from dflash.decode.scheduling.starter import Starter
from dflash.decode.scheduling.waiting import WaitingQueue, place
from dflash.decode.session import Session, Step
from dflash.decode.verify import Samples, verify, wait
from dflash.errors import EngineFailed, RequestError
from dflash.kernels.delta.state_copies import StateCopy
from dflash.kernels.gpu.lost import is_lost
from dflash.model.batch import Forward
from dflash.model.protocols.target import TargetModel

CHUNK = 512
"""Default number of prompt tokens in a forward."""

MAX_FAILURES = 3
"""Failed forwards in a row that end the engine: one or two may be the fault of their sessions."""


class Event(NamedTuple):
    """A step of a session, as `Engine.step` returns it."""

    session: Session
    step: Step


class Engine:
    """Advances sessions together: propose, one forward for all, verify each, commit, let the drafters observe.

    Chunks of some prompts share a forward with the decode rows of other sessions. Sessions join and leave between steps.
    Sessions of the lowest priority number start first; of these, groups take turns. A session that does not fit memory waits
    for others to end, and a bounded number of later sessions may start before it. Sessions take KV pages as they grow; if
    none is left, the youngest is preempted. Only `add` and `add_all` may be called while another thread calls a method.
    A session that fails ends alone. A lost device, or `MAX_FAILURES` failed forwards in a row, ends the engine: every
    session ends with `EngineFailed`, and every later `add` and `step` raises it.

    model: used by the engine alone while it steps.
    chunk: most prompt tokens in a forward, over all sessions; at least the model's `chunk_alignment`.
    max_active: most sessions that run at a time; the number of the model's slots if None.
    max_waiting: most sessions that wait while `max_active` run; unbounded if None.
    max_step: most seconds of a step in which prompts delay sessions that decode, as far as smaller chunks can reach it;
        unbounded if None.
    prefix_cache: snapshots of earlier sessions, from which new ones begin. The engine closes it.
    headroom: KV pages left free for the growth of each active session when another one starts; None for all until their
        ends.
    max_swap: KV pages of running sessions, without those of the oldest, beyond which no other session starts: a preemption
        of all would copy them to the host. Pages that sessions share count for each. Unbounded if None.
    draft_budget: draft only tokens that pay; see `DraftBudget`. How many come in a step then depends on measured times.
    errands: other work that uses the model; one piece runs before each step.
    rereads, prompt_share, draft_budget, starter: see there. The budgets are None without `max_step`, or `draft_budget`.
    """

    def __init__(
        self,
        model: TargetModel,
        *,
        chunk: int = CHUNK,
        max_active: int | None = None,
        max_waiting: int | None = None,
        max_step: float | None = None,
        prefix_cache: PrefixCache | None = None,
        headroom: int | None = HEADROOM,
        max_swap: int | None = None,
        draft_budget: bool = False,
    ) -> None:
        self.model, self.prefix_cache = model, prefix_cache
        self.starter = Starter(model, prefix_cache, headroom, max_swap)
        self.chunk = max(model.chunk_alignment, min(chunk, model.max_rows))
        slots = min(model.pools.slots, model.max_rows)
        self.max_active = slots if max_active is None else max(1, min(max_active, slots))
        self.max_waiting = max_waiting
        on_gpu, alignment = model.device != "cpu", model.chunk_alignment
        self.prompt_share = None if max_step is None else PromptShare(max_step, alignment, on_gpu=on_gpu)
        self.draft_budget = DraftBudget(on_gpu=on_gpu) if draft_budget else None
        self._limits = None if self.draft_budget is None else self.draft_budget.limits
        self._added: deque[Session] = deque()
        self._waiting = WaitingQueue()
        self._active: list[Session] = []
        self._events: list[Event] = []
        self._overlapped: OverlappedStep | None = None
        self._behind: list[BatchPart] = []  # prompts that the device may still be reading
        self._to_save: list[Session] = []
        self._to_end: list[tuple[Session, Step]] = []
        self.errands, self.rereads = Errands(), RereadQueue(prefix_cache, model.chunk_alignment)
        self._n_ended = self._n_failures = self.n_preempted = 0
        self._failure: str | None = None

    @property
    def active(self) -> int:
        """Sessions of requests that hold memory."""
        return sum(not session.is_reread for session in self._active)

    @property
    def waiting(self) -> int:
        """Sessions that wait to start or to be resumed."""
        return len(self._added) + len(self._waiting)

    @property
    def busy(self) -> bool:
        """True if `step` has work to do. A failed engine is always busy: its `step` raises the failure."""
        return bool(self._active or self._added or self._waiting or self.rereads.is_due or self.errands or self._failure)

    def add(self, session: Session) -> Session:
        """Queue a session. May be called from any thread. Raises the errors of `add_all`."""
        self.add_all([session])
        return session

    def add_all(self, sessions: Sequence[Session]) -> None:
        """Queue several sessions, all or none. May be called from any thread."""
        if self._failure is not None:
            raise EngineFailed(self._failure)
        if len(set(sessions)) != len(sessions):
            raise RequestError("session: was given twice; make a new one for each request")
        for session in sessions:
            check(self.model, session)
        check_queue(len(sessions), self.waiting, self.active, self.max_waiting, self.max_active)
        now = perf_counter()
        for session in sessions:
            session.added_at = now
        self._added.extend(sessions)

    def step(self) -> list[Event]:
        """Run one errand, if there is any, then advance every session once.

        Returns: One for each step that was emitted, including the last steps of sessions that failed. A step that was held
            back comes with the later one that released it.
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
        """Add sessions and yield their events until all have finished. Closing the iterator cancels the unfinished ones."""
        n_yielded: dict[Session, int] = {}
        try:
            for session in sessions:
                n_yielded[self.add(session)] = 0
            while n_yielded:
                for session in list(n_yielded):
                    while n_yielded[session] < len(session.steps):
                        n_yielded[session] += 1
                        yield Event(session, session.steps[n_yielded[session] - 1])
                    if session.finished:
                        del n_yielded[session]
                if n_yielded:
                    self.step()
        finally:
            for session in n_yielded:
                session.cancel()
            if n_yielded:
                self._end_cancelled()
                self._events = []

    def stream(self, session: Session) -> Iterator[Step]:
        """Add one session and yield its steps."""
        with closing(self.run([session])) as events:
            for event in events:
                yield event.step
        if session.error is not None:
            raise session.error

    def close(self) -> None:
        """Cancel all sessions and errands, then close what was loaded for the model, such as drafts."""
        self.errands.close()
        try:
            self._cancel_all()
            if self.prefix_cache is not None:
                self.prefix_cache.close()
        finally:
            self.model.attachments.close()

    def _cancel_all(self) -> None:
        self.rereads.clear()
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
            if self.prefix_cache is not None:
                self.prefix_cache.reserve_rest(self.model, session)
            self._end(session, "cancelled")

    def _admit(self) -> None:
        while self._waiting and self._active and isinstance(reread := self._active[-1], Reread):
            self.rereads.put_back(reread)
            self._end(reread, "cancelled")
        while self._waiting and len(self._active) < self.max_active and self._failure is None:
            tried = self.starter.first(self._waiting, self._active, self._n_ended)
            if tried is None:
                break
            if tried.end is not None:
                self._end(tried.session, tried.end, tried.error)
            else:
                insort(self._active, tried.session, key=place)
                self.rereads.drop(tried.session)
        if self._failure is None and not (self._active and self._active[-1].is_reread):
            self.rereads.start(self.starter, self._active, self._chunk, waits=bool(self._waiting))

    def _advance(self) -> None:
        """Advance all active sessions by one step: propose, forward, verify, commit, observe."""
        started = began = perf_counter()
        parts, out = self._propose()
        if not parts:
            return
        proposed = perf_counter()
        launched = self._forward(parts, out)
        if launched is None:
            return
        timed, self._behind = [*launched.now, *self._behind], launched.behind
        shared = Step([], batch=parts[-1].stop, propose=proposed - began, forward=perf_counter() - proposed)
        prompts: list[tuple[Session, Iterator[StateCopy]]] = []
        for part, out, samples in launched.rows:
            try:
                if part.n_prefill:
                    prompts.append((part.session, self._prefill(part, out, shared)))
                    continue
                began, n_before = perf_counter(), len(part.session.interventions)
                decision = self._verify(part, out, samples)
                verified = perf_counter()
                step = part.step(decision.accepted, shared, verified - began)
                self._commit(part.session, decision)
                if self.draft_budget is not None:
                    self.draft_budget.learn(part.session, step)
                self._observe(part, step, out, restart=decision.restart)
                self._finish(part, decision, step, n_before, perf_counter() - verified)
            except Exception as error:
                self._end(part.session, "error", error)
        self._prefill_all(prompts)
        if self._overlapped is None:
            self._end_observing(part.session for part, *_ in launched.rows)
        self._save_states()
        if parts[0].session.is_reread:
            self.model.finish()  # else more pieces would be launched before a request arrives
        seconds = perf_counter() - started
        self.rereads.observe(timed, seconds)
        if self.prompt_share is not None:
            self.prompt_share.observe(timed, seconds)
        if self.draft_budget is not None:
            self.draft_budget.observe(timed, seconds, launched.waited)

    def _propose(self) -> tuple[list[BatchPart], Forward | None]:
        """Return the rows of the next forward, and the forward itself if it was launched during the step before."""
        overlapped, self._overlapped = self._overlapped, None
        try:
            if overlapped is not None and (parts := overlapped.take(self._active)):
                return parts, overlapped.out
            reserve_step(self._active, self.prefix_cache, self._preempt, self._fail)
            return plan(self.model, self._active, self._chunk, self._fail, self._limits), None
        except Exception as error:
            self._fail_forward(list(self._active), error, counted=False)
            return [], None

    def _chunk(self, n_decoding: int) -> int:
        """Return the most prompt tokens of a forward in which `n_decoding` sessions decode."""
        share = self.prompt_share
        return self.chunk if share is None else share.tokens(self.chunk, n_decoding)

    def _forward(self, parts: list[BatchPart], out: Forward | None) -> Launched | None:
        """Launch the forward unless it was launched before, then the next step, and wait for samples; None if it failed."""
        in_forward = True
        try:
            launched = launch(self.model, parts, out)
            in_forward = False  # a drafter that fails in `plan_next` is no failure of the model
            self._overlapped = launch_next(self.model, parts, self._active, launched.rows[0][1], self.draft_budget)
            in_forward, began = True, perf_counter()
            wait(launched.samples)
            launched = launched._replace(waited=perf_counter() - began)
        except Exception as error:
            self._fail_forward([part.session for part in parts], error, counted=in_forward)
            return None
        self._n_failures = 0
        return launched

    def _prefill_all(self, prompts: Sequence[tuple[Session, Iterator[StateCopy]]]) -> None:
        """Finish the chunks of several prompts. States inside of them are saved once drafters have read the rows of all."""
        while prompts:
            reached: list[tuple[Session, Iterator[StateCopy], StateCopy]] = []
            for session, chunk in prompts:
                try:
                    if (copy := next(chunk, None)) is not None:
                        reached.append((session, chunk, copy))
                except Exception as error:
                    self._end(session, "error", error)
            self._end_observing(session for session, *_ in reached)
            for session, _, copy in reached:
                self._save_state(session, copy)
            prompts = [(session, chunk) for session, chunk, _ in reached if session.state is not None]

    def _prefill(self, part: BatchPart, out: Forward, shared: Step) -> Iterator[StateCopy]:
        """Count a chunk of a prompt as prefilled and pass its rows to the drafter; yield as `observe_prompt`."""
        session = part.session
        if part.span.logits:
            score(session, out.logits[part.start : part.stop])
        step = shared._replace(prefilled=part.n_prefill)
        if session.max_length == session.n_prompt and not session.unscored:
            session.n_prefilled += part.n_prefill
            self._end(session, "length", step=step._replace(finish="length"))
            return
        yield from observe_prompt(session, part.span, step, out, first=part.start)
        if session.n_prefilled == session.n_prompt - 1:
            save_prompt_snapshot(session)
        if session.n_prefilled in session.snapshot_at:
            self._to_save.append(session)
        if session.is_reread and session.n_prefilled == session.n_prompt - 1:
            self._to_end.append((session, step._replace(finish="length")))
        else:
            self._emit(session, step)

    def _verify(self, part: BatchPart, out: Forward, samples: Samples | None) -> Decision:
        """Return the accepted tokens of a session after its recoveries and its observer have seen them."""
        session = part.session
        # rows with logits come first in a forward, those that decode before prompts
        decision = apply_recoveries(session, verify(part.draft, out.logits[part.start : part.stop], session, samples))
        accepted = show(session, decision)
        return decision if accepted is decision.accepted else decision._replace(accepted=accepted)

    def _commit(self, session: Session, decision: Decision) -> None:
        """Append the accepted tokens to the session and keep their rows in the target's state, or restart the session."""
        if not decision.restart:
            assert session.state is not None, "the session runs"
            session.state.commit(decision.accepted.rows)
            session.append(decision.accepted)
        elif not readmit(self.model, session, self.prefix_cache):
            self._preempt(session)

    def _observe(self, part: BatchPart, step: Step, out: Forward, *, restart: bool) -> None:
        """Pass the step and its accepted rows to the drafter, unless the session ends or restarts."""
        if restart or (step.finish is not None and not self._saves(part.session)):
            return
        if self._overlapped is not None:
            self._overlapped.accept(part.session)  # its drafter has observed the rows before the launch
        else:
            assert part.session.drafter_state is not None, "the session runs"
            part.session.drafter_state.observe(step, out, [part.start + row for row in step.rows])

    def _end_observing(self, sessions: Iterable[Session]) -> None:
        """Let drafters finish what they noted of a step, all sessions of one together."""
        for drafter, group in drafter_groups(sessions).items():
            try:
                end_step(drafter, drafter_states_of(group))
            except Exception as error:
                for session in group:
                    self._end(session, "error", error)

    def _finish(self, part: BatchPart, decision: Decision, step: Step, n_before: int, commit: float) -> None:
        """Emit the step of a session, hold it back, or end the session with it."""
        session = part.session
        note = " ".join(map(str, session.interventions[n_before:])) if len(session.interventions) > n_before else ""
        step = step._replace(commit=commit, note=note, by=getattr(session.drafter_state, "by", "") * bool(step.drafted))
        if step.finish is not None and self._saves(session):
            self._to_save.append(session)
            self._to_end.append((session, step))
        elif step.finish is not None:
            self._end(session, step.finish, step=step)
        elif decision.hold:
            session.held_steps.append(step)
        else:
            self._emit(session, step)

    def _saves(self, session: Session) -> bool:
        """Return True if the prefix cache saves the end of a session."""
        return self.prefix_cache is not None and self.prefix_cache.wants_end(self.model, session)

    def _save_states(self) -> None:
        """Save states for the prefix cache, once all drafters have observed the step, and end the sessions that waited."""
        saving, self._to_save = self._to_save, []
        ending, self._to_end = self._to_end, []
        for session in saving:
            self._save_state(session)
        for session, step in ending:
            if not session.finished and step.finish is not None:
                self._end(session, step.finish, step=step)

    def _save_state(self, session: Session, copy: StateCopy | None = None) -> None:
        """Save the present state of a session for the prefix cache, or a copy inside of its prompt."""
        try:
            if session.state is not None and self.prefix_cache is not None:
                self.prefix_cache.reserve(session, copy)
        except Exception as error:
            self._end(session, "error", error)

    def _fail_forward(self, sessions: Sequence[Session], error: Exception, *, counted: bool = True) -> None:
        """End the sessions of a forward that failed; also the engine, if too many forwards failed in a row."""
        for session in sessions:
            self._end(session, "error", error)
        self._n_failures += counted
        if self._n_failures >= MAX_FAILURES:
            self._give_up(f"{MAX_FAILURES} forwards in a row failed, the last one with {type(error).__name__}: {error}")

    def _give_up(self, reason: str) -> None:
        self._failure = self._failure or f"the engine has failed and takes no more work: {reason}"

    def _preempt(self, session: Session) -> None:
        """Move a session's state to the host. It waits to be resumed before any other session starts."""
        if session.is_reread:
            self._end(session, "cancelled")
            return
        self._active.remove(session)
        self._waiting.prepend(session)
        self.n_preempted += 1
        try:
            set_aside(session, self.prefix_cache)
        except Exception as error:
            self._end(session, "error", error)

    def _fail(self, session: Session, error: Exception) -> None:
        self._end(session, "error", error)

    def _emit(self, session: Session, step: Step) -> None:
        """Emit a step after those that were held back."""
        session.record(step)
        if self.prefix_cache is not None and (step.tokens or step.finish is not None):
            self.prefix_cache.confirm(session)
        steps, session.held_steps = [*session.held_steps, step], []
        session.steps += steps
        self._events += [Event(session, each) for each in steps if not session.is_reread]

    def _end(self, session: Session, reason: str, error: Exception | None = None, *, step: Step | None = None) -> None:
        """Release the session's memory, then emit its last step. Never raises, and never formats the session."""
        if session in self._active:
            self._active.remove(session)
        self._waiting.remove(session)
        self._n_ended += 1
        try:
            session.release()
            keeps = session.has_emitted or bool(step and step.tokens) or reason == "cancelled" or session.is_reread
            if self.prefix_cache is not None and not keeps:
                self.prefix_cache.abort(session)
            session.record(step or Step([], finish=reason))
        except Exception as failure:
            reason, error, step = "error", error or failure, None
        if is_lost(error):
            self._give_up(f"the device is lost: {error}")
        session.recorder = session.preempted_state = None
        session.error, session.ended_at = error, perf_counter()
        self._emit(session, step or Step([], finish=reason))
        session.finish_reason = reason
        self.rereads.add(session)
