"""Overlapped steps: the next forward is launched while its tokens are still being sampled, so a GPU need not wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from dflash.decode.drafting.device_draft import can_defer
from dflash.decode.drafting.drafter import NO_DRAFT, Drafter, DraftPlan, end_step, planned_next
from dflash.decode.scheduling.batch_plan import BatchPart, capture_of, drafter_groups, drafter_states_of, max_draft
from dflash.decode.scheduling.draft_budget import DraftBudget
from dflash.decode.scheduling.memory import reserve
from dflash.decode.step import Step
from dflash.decode.verifiers.base import accepted_ahead
from dflash.decode.verify import Samples, sample_rows
from dflash.errors import PoolExhausted
from dflash.model.draft.request import DraftRequest
from dflash.model.protocols.device_drafter import DeviceDrafter
from dflash.model.protocols.target import OverlappingModel, TargetModel, overlaps

if TYPE_CHECKING:
    from dflash.decode.session import Session
    from dflash.model.batch import Forward

_ROOT = (-1,)


class OverlappedStep:
    """A forward over one more token of each session that goes on, launched before the token is known on the host.

    `parts` and `out` are those of the present step, whose tokens this forward reads. The drafters observe that step first,
    since this forward overwrites its outputs.
    """

    def __init__(self, model: OverlappingModel, parts: list[BatchPart], out: Forward) -> None:
        self._model = model
        step = Step([], batch=len(parts))  # its tokens and times are not known yet
        for part, drafter_state in zip(parts, drafter_states_of(part.session for part in parts), strict=True):
            drafter_state.observe(step, out, [part.start])
        for drafter, group in drafter_groups(part.session for part in parts).items():
            end_step(drafter, drafter_states_of(group))
        continuing = filter(_continues, parts)
        self._parts = [part._replace(start=row, stop=row + 1) for row, part in enumerate(continuing)]
        self._sessions = {part.session for part in self._parts}
        self.out: Forward = model.forward_overlapped([part.span for part in self._parts], capture=capture_of(self._parts))

    def accept(self, session: Session) -> None:
        """Count the session's row as read, after its token was accepted."""
        if session in self._sessions:
            assert session.state is not None, "the session runs"
            session.state.mark_read(_ROOT, prefill=False)

    def take(self, active: Sequence[Session]) -> list[BatchPart]:
        """Return the parts of sessions that are still active; none if the model or a state was used otherwise meanwhile."""
        continuing = [part for part in self._parts if part.session in active]
        if self._model.latest is self.out and all(part.span.state.pending == _ROOT for part in continuing):
            return continuing
        for part in continuing:
            part.span.state.commit([])
        return []


class Launched(NamedTuple):
    """The forwards of a step, which a device may still be computing.

    rows: each part, by its rows in the forward beside it, and its samples if it decodes.
    behind: prompts that the device reads after these, while their tokens are used.
    waited: seconds for which the host waited for the samples.
    """

    rows: list[tuple[BatchPart, Forward, Samples | None]]
    samples: list[Samples | None]
    now: list[BatchPart]
    behind: list[BatchPart]
    waited: float = 0.0


def launch(model: TargetModel, parts: list[BatchPart], out: Forward | None) -> Launched:
    """Launch the forward of a step and the sampling of its rows.

    out: its forward, if that was launched during the step before.

    Prompts have a forward of their own, launched after the sampling, if the model can overlap, a session decodes and no
    prompt has rows with logits.
    """
    spans, capture = [part.span for part in parts], capture_of(parts)
    n, more = sum(not part.n_prefill for part in parts), None
    if out is None and 0 < n < len(parts) and overlaps(model) and not any(span.logits for span in spans[n:]):
        out, more = model.forward_before(spans[:n], capture=capture), model
    out = out or model.forward(spans, capture=capture)
    samples = sample_rows(out.logits, [(part.draft, part.session, part.start) for part in parts[:n]])
    if more is None:
        rows = [(part, out, None) for part in parts[n:]]
        return Launched([*zip(parts, repeat(out), samples), *rows], samples, parts, [])
    after, start = more.forward_behind(spans[n:], capture=capture), parts[n].start
    rows = [(part._replace(start=part.start - start, stop=part.stop - start), after, None) for part in parts[n:]]
    return Launched([*zip(parts, repeat(out), samples), *rows], samples, parts[:n], parts[n:])


def launch_next(
    model: TargetModel,
    parts: list[BatchPart],
    active: Sequence[Session],
    out: Forward,
    draft_budget: DraftBudget | None = None,
) -> OverlappedStep | None:
    """Launch the next step as far as it can be planned: its forward if no session drafts, else the drafts.

    Returns: none if no forward was launched: a session drafts, prefills, or has processors, a grammar, recoveries, a
        recorder or log-probabilities, which need tokens on the host: the mask of a token depends on the token before it.
        None as well if every session ends, or there are no KV pages for one more token of each. Drafts that were launched
        are found by the drafter in `propose`; none is while a session ends.
    """
    if not overlaps(model) or len(parts) != len(active) or any(part.n_prefill for part in parts):
        return None
    n_continuing = sum(map(_continues, parts))
    deferred = all(can_defer(part.session, drafts=False) for part in parts)
    if len(parts) > model.most_overlapped or not n_continuing or not deferred:
        return None
    limits: Mapping[Session, int] = {}
    if draft_budget is not None:
        sessions = [part.session for part in parts]
        limits = draft_budget.plan(sessions, max_draft(model, len(sessions), model.max_rows))
    found = _planned_next(parts, limits)
    if all(one is NO_DRAFT for one in found) and all(_is_plain(part, row) for row, part in enumerate(parts)):
        return OverlappedStep(model, parts, out) if _reserved_ahead(filter(_continues, parts)) else None
    if n_continuing < len(parts):
        return None
    requests: dict[DeviceDrafter, list[tuple[DraftRequest[Any], int, int]]] = {}
    for i, (one, part) in enumerate(zip(found, parts, strict=True)):
        taken = accepted_ahead(part.session.verifier, part.draft)
        if one is not None and one.drafter and one.request and can_defer(part.session) and taken is not None:
            requests.setdefault(one.drafter, []).append((one.request, i, taken))
    for drafter, of_parts in requests.items():
        drafter.launch_ahead(*map(list, zip(*of_parts, strict=True)))
    return None


def _planned_next(parts: Sequence[BatchPart], limits: Mapping[Session, int]) -> list[DraftPlan | None]:
    """Return the plan of each part; each drafter is asked once for all of its sessions that may draft."""
    groups: dict[Drafter, list[int]] = {}
    found: list[DraftPlan | None] = [NO_DRAFT] * len(parts)
    for i, part in enumerate(parts):
        if limits.get(part.session, 1):
            groups.setdefault(part.session.drafter, []).append(i)
    for drafter, group in groups.items():
        drafter_states = drafter_states_of(parts[i].session for i in group)
        plans = planned_next(drafter, drafter_states, [parts[i].draft for i in group])
        for i, one in zip(group, plans, strict=True):
            found[i] = one
    return found


def _continues(part: BatchPart) -> bool:
    """Return False if the step's token is the last one of the session."""
    return len(part.session.history) + 1 < part.session.max_length


def _reserved_ahead(parts: Iterable[BatchPart]) -> bool:
    """Take the memory for one more token of each session; return False if there is not enough."""
    try:
        for part in parts:
            reserve(part.session, 1)
    except PoolExhausted:
        return False
    return True


def _is_plain(part: BatchPart, row: int) -> bool:
    return (part.start, part.stop) == (row, row + 1) and part.session.recorder is None
