"""Use the first of several drafters that has a draft."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from dflash.decode.drafters.composite import (
    CompositeSnapshot,
    CompositeState,
    can_start_all_at,
    end_all,
    prepare_all,
    snapshots_from_host,
    start_all,
)
from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import NO_DRAFT, Drafter, DraftPlan, Strategy, is_prepared, planned_next
from dflash.decode.registry import NameCall, Named, name, register
from dflash.errors import RequestError

if TYPE_CHECKING:
    from dflash.decode.view import SessionView
    from dflash.model.protocols.target import TargetModel
    from dflash.model.state.host_arrays import HostArrays


def _from_name(call: NameCall) -> Named:
    inner = call.inner or ()
    shapes = [part.shape for part in inner if part.shape is not None]
    if len(set(shapes)) > 1:
        raise RequestError(f"strategy {call.text!r:.80}: first(...) drafts in one shape, got {shapes}")
    drafters = dict.fromkeys(part.drafter for part in inner)
    return Named(FirstOf(*drafters), shapes[0] if shapes else None)


def _to_name(strategy: Strategy) -> str:
    assert isinstance(strategy.drafter, FirstOf)
    parts = [Strategy(part) for part in strategy.drafter.drafters]
    if strategy.shape is not None:
        parts[-1] = Strategy(parts[-1].drafter, strategy.shape)
    return f"first({', '.join(map(name, parts))})"


@register("first", brackets="always", make=_from_name, spell=_to_name)
class FirstOf(Drafter[CompositeState]):
    """For each session, take the draft of the first drafter that has one. All drafters observe all tokens.

    Parameters
    ----------
    *drafters : Drafter or str
        Drafters, the most reliable one first, such as ``FirstOf(PromptLookup(max_ngram=16, min_ngram=8), "mtp")``.

    Raises
    ------
    RequestError
        If there are none, or one is a strategy with a shape or recoveries.
    """

    def __init__(self, *drafters: Drafter | str) -> None:
        if not drafters:
            raise RequestError("FirstOf: needs at least one drafter")
        self.drafters = self.parts = tuple(map(_alone, drafters))
        self.instant = all(drafter.instant for drafter in self.drafters)
        self.chooses_size = any(drafter.chooses_size for drafter in self.drafters)

    def prepare(self, model: TargetModel) -> None:
        """Prepare all drafters."""
        prepare_all(self.drafters, model)

    def is_prepared(self, model: TargetModel) -> bool:
        """Return True if all drafters are prepared."""
        return all(is_prepared(drafter, model) for drafter in self.drafters)

    def prepare_in_parts(self, model: TargetModel) -> Generator[None, None, None]:  # noqa: ARG002
        """Do nothing: the parts are prepared by themselves."""
        yield from ()

    def snapshot_from_host(self, model: TargetModel, arrays: HostArrays) -> CompositeSnapshot:
        """Return the snapshots of all drafters."""
        return snapshots_from_host(self.drafters, model, arrays)

    def can_start_at(
        self, model: TargetModel, n_prompt: int, length: int, snapshot: CompositeSnapshot | None = None
    ) -> bool:
        """Return True if all drafters can."""
        return can_start_all_at(self.drafters, model, n_prompt, length, snapshot)

    def start(self, session: SessionView, model: TargetModel, snapshot: CompositeSnapshot | None = None) -> CompositeState:
        """Start all drafters."""
        return CompositeState(start_all(self.drafters, session, model, snapshot))

    def propose(self, drafter_states: Sequence[CompositeState], max_drafts: Sequence[int]) -> list[Draft]:
        """Ask each drafter once for all sessions that have no draft yet."""
        drafts = [EMPTY] * len(drafter_states)
        for i, drafter in enumerate(self.drafters):
            open_ = [j for j, draft in enumerate(drafts) if not len(draft)]
            if not open_:
                break
            found = drafter.propose([drafter_states[j].parts[i] for j in open_], [max_drafts[j] for j in open_])
            for j, draft in zip(open_, found, strict=True):
                drafts[j] = draft
                drafter_states[j].source, drafter_states[j].by = i, type(drafter).__name__ if len(draft) else ""
        return drafts

    def end_step(self, drafter_states: Sequence[CompositeState]) -> None:
        """End the step of all drafters."""
        end_all(self.drafters, drafter_states)

    def plan_next(self, drafter_states: Sequence[CompositeState], drafts: Sequence[Draft]) -> list[DraftPlan | None]:
        """Plan with the drafter of the present draft. The plan is used if no earlier drafter has a draft then."""
        found: list[DraftPlan | None] = []
        for drafter_state, draft in zip(drafter_states, drafts, strict=True):
            i = drafter_state.source
            own = planned_next(self.drafters[i], [drafter_state.parts[i]], [draft])[0] if len(draft) else None
            found.append(None if own is NO_DRAFT else own)
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FirstOf) and self.drafters == other.drafters

    def __hash__(self) -> int:
        return hash((FirstOf, self.drafters))

    def __repr__(self) -> str:
        return f"FirstOf({', '.join(map(repr, self.drafters))})"


def _alone(value: Drafter | str) -> Drafter:
    strategy = Strategy.of(value)
    if strategy != Strategy(strategy.drafter):
        raise RequestError(
            f"FirstOf: {value!r} is more than a drafter; shape and recoveries go around all, "
            "as in Strategy(FirstOf(...), Chain(8)) | LoopGuard()"
        )
    return strategy.drafter
