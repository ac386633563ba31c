"""Use the first of several drafters that has a draft."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

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
from dflash.decode.drafting.shapes import Chain
from dflash.decode.registry import NameCall, Named, name, register
from dflash.errors import RequestError

if TYPE_CHECKING:
    from dflash.decode.view import SessionView
    from dflash.model.protocols.target import TargetModel
    from dflash.model.state.host_arrays import HostArrays


def _from_name(call: NameCall) -> Named:
    parts = [Strategy(*part) for part in call.inner or ()]
    shapes = {part.shape for part in parts} - {None}
    if all(isinstance(shape, Chain) for shape in shapes):
        return Named(FirstOf(*parts))
    if len(shapes) > 1:
        raise RequestError(f"strategy {call.text!r:.80}: first(...) drafts in chains or in one shape, got {shapes}")
    return Named(FirstOf(*(part.drafter for part in parts)), shapes.pop())


def _to_name(strategy: Any) -> str | None:
    *others, last = strategy.drafter.strategies
    if isinstance(strategy.shape, Chain) or (strategy.shape and any(part.shape for part in (*others, last))):
        return None
    return f"first({', '.join(map(name, (*others, Strategy(last.drafter, strategy.shape or last.shape))))})"


@register("first", brackets="always", make=_from_name, spell=_to_name)
class FirstOf(Drafter[CompositeState]):
    """For each session, take the draft of the first drafter that has one. All drafters observe all tokens.

    Parameters
    ----------
    *drafters : Drafter, str or Strategy
        Drafters, the most reliable one first, such as ``FirstOf(PromptLookup(max_ngram=16, min_ngram=8), "mtp:3")``. One
        with a `Chain` drafts at most as many tokens, whatever the shape of the strategy around.

    Raises
    ------
    RequestError
        If there are none, one is a strategy with a tree or recoveries, or two are the same drafter, also inside of another
        `FirstOf`: where the first of these has no draft, the second has none either.

    Attributes
    ----------
    asked : tuple of Drafter
        Drafters in the order in which they are asked, with those of parts that are `FirstOf` in place of these.
    """

    def __init__(self, *drafters: Drafter | str | Strategy) -> None:
        if not drafters:
            raise RequestError("FirstOf: needs at least one drafter")
        self.strategies = tuple(map(_checked, drafters))
        self.drafters = self.parts = tuple(strategy.drafter for strategy in self.strategies)
        inner = (each.asked if isinstance(each, FirstOf) else (each,) for each in self.drafters)
        self.asked: tuple[Drafter, ...] = tuple(chain.from_iterable(inner))
        if twice := [each for i, each in enumerate(self.asked) if each in self.asked[:i]]:
            raise RequestError(f"FirstOf: names {twice[0]!r:.80} twice, of which the second would never draft")
        self.limits = tuple(getattr(strategy.shape, "depth", None) for strategy in self.strategies)
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
        found = CompositeState(start_all(self.drafters, session, model, snapshot), self.limits)
        found.set_shape(session.strategy.shape)
        return found

    def propose(self, drafter_states: Sequence[CompositeState], max_drafts: Sequence[int]) -> list[Draft]:
        """Ask each drafter once for all sessions that have no draft yet."""
        drafts = [EMPTY] * len(drafter_states)
        for i, drafter in enumerate(self.drafters):
            open_ = [j for j, draft in enumerate(drafts) if not len(draft)]
            if not open_:
                break
            limits = [min(max_drafts[j], self.limits[i] or max_drafts[j]) for j in open_]
            found = drafter.propose([drafter_states[j].parts[i] for j in open_], limits)
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
        return isinstance(other, FirstOf) and self.strategies == other.strategies

    def __hash__(self) -> int:
        return hash((FirstOf, self.drafters))

    def __repr__(self) -> str:
        return f"FirstOf({', '.join(repr(each.drafter if each.shape is None else each) for each in self.strategies)})"


def _checked(value: Drafter | str | Strategy) -> Strategy:
    strategy = Strategy.of(value)
    if strategy != Strategy(strategy.drafter, strategy.shape) or not isinstance(strategy.shape, Chain | None):
        raise RequestError(
            f"FirstOf: {value!r} is more than a drafter with a chain; trees and recoveries go around all, "
            "as in Strategy(FirstOf(...), Tree(22)) | LoopGuard()"
        )
    return strategy
