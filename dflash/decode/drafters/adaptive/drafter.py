"""Choose drafter and draft size at every step."""

from collections.abc import Generator, Sequence

from dflash.decode.drafters.adaptive.cost_model import DEPTH, CostModel, Variant
from dflash.decode.drafters.adaptive.measuring import measured_costs, measures_of
from dflash.decode.drafters.adaptive.session import PLAIN, AdaptiveState
from dflash.decode.drafters.composite import (
    CompositeSnapshot,
    can_start_all_at,
    end_all,
    prepare_all,
    set_shape,
    snapshots_from_host,
    start_all,
)
from dflash.decode.drafters.dflash import DRAFT_OPTIONS, DFlash
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.draft import Draft
from dflash.decode.drafting.drafter import Drafter, DraftPlan, Nothing, Strategy
from dflash.decode.drafting.shapes import Chain
from dflash.decode.registry import NameCall, Named, name, register
from dflash.decode.view import SessionView
from dflash.errors import RequestError
from dflash.model.protocols.target import TargetModel
from dflash.model.state.host_arrays import HostArrays

_DEFAULT = Strategy(DFlash()), Strategy(MTP(), Chain(7)), Strategy(PromptLookup(n_draft=DEPTH))
"""Strategies of `Adaptive()`; those that the model has no files for are left out."""


def _from_name(call: NameCall) -> Named:
    if call.inner is not None:
        return Named(Adaptive(*(Strategy(*part) for part in call.inner)))
    return Named(Adaptive(DFlash(**call.options), PromptLookup()) if call.options else Adaptive())


def _to_name(strategy: Strategy) -> str:
    assert isinstance(strategy.drafter, Adaptive)
    parts = ", ".join(map(name, strategy.drafter.strategies))
    return f"adaptive({parts})" if parts else "adaptive"


@register("adaptive", brackets="optional", takes=DRAFT_OPTIONS, make=_from_name, spell=_to_name)
class Adaptive(Drafter[AdaptiveState]):
    """At every step, use the drafter and draft size that gain most tokens for their time on this device, or none.

    Parameters
    ----------
    *strategies : Strategy or Drafter
        Drafters with their largest shapes. If none are given: those of `DFlash()`, `MTP()` and `PromptLookup()` that the
        model has files for.

    Raises
    ------
    RequestError
        If a strategy has recoveries; these belong around `Adaptive`.
    """

    chooses_size = True

    def __init__(self, *strategies: Strategy | Drafter) -> None:
        self.strategies = tuple(Strategy.of(each) for each in strategies)
        self.needs_all = bool(strategies)
        self.parts = tuple(dict.fromkeys(each.drafter for each in self.strategies or _DEFAULT))
        for strategy in self.strategies:
            if strategy.recoveries:
                raise RequestError(f"{strategy!r} has recoveries: they go around, as in Adaptive(...) | LoopGuard()")
        self._hash = hash((Adaptive, self.strategies))

    def is_prepared(self, model: TargetModel) -> bool:
        """Return True if the latencies of the model were measured for these strategies."""
        return ("costs", self) in measures_of(model)

    def prepare(self, model: TargetModel) -> None:
        """Prepare each drafter and measure the latencies that are not known yet."""
        if not self.is_prepared(model):
            prepare_all(self.parts, model, needs_all=self.needs_all)
            list(self.prepare_in_parts(model))

    def prepare_in_parts(self, model: TargetModel) -> Generator[None, None, None]:
        """Measure latencies in the thread that owns the model: one forward, or a few tokens of one session, at a time."""
        yield
        strategies: Sequence[Strategy] = self.strategies or [each for each in _DEFAULT if each.drafter.is_prepared(model)]
        strategies = [each for each in strategies if type(each.drafter) is not Nothing]
        measures_of(model).keep(("costs", self), (yield from measured_costs(strategies, model)))

    def snapshot_from_host(self, model: TargetModel, arrays: HostArrays) -> CompositeSnapshot:
        """Return the snapshots of all drafters."""
        return snapshots_from_host(self._costs(model).drafters, model, arrays)

    def can_start_at(
        self, model: TargetModel, n_prompt: int, length: int, snapshot: CompositeSnapshot | None = None
    ) -> bool:
        """Return True if all drafters can."""
        return can_start_all_at(self._costs(model).drafters, model, n_prompt, length, snapshot)

    def start(self, session: SessionView, model: TargetModel, snapshot: CompositeSnapshot | None = None) -> AdaptiveState:
        """Start all drafters."""
        self.prepare(model)
        costs = self._costs(model)
        return AdaptiveState(costs, session, start_all(costs.drafters, session, model, snapshot))

    def _costs(self, model: TargetModel) -> CostModel:
        costs: CostModel | None = measures_of(model).recall(("costs", self))
        assert costs is not None, "`prepare` has stored it"
        return costs

    def propose(self, drafter_states: Sequence[AdaptiveState], max_drafts: Sequence[int]) -> list[Draft]:
        """Choose for each session, then ask each chosen drafter once."""
        asked: dict[Variant, list[AdaptiveState]] = {}
        for drafter_state, max_draft, load in zip(drafter_states, max_drafts, _loads(drafter_states), strict=True):
            option, n = drafter_state.decide(max_draft, *load)
            if option is not None and not option.drafter.instant:
                set_shape(drafter_state.parts[option.part], option.shape_of(n))
                asked.setdefault(option, []).append(drafter_state)
        for option, chosen in asked.items():
            parts, sizes = [each.parts[option.part] for each in chosen], [each.choice[1] for each in chosen]
            for drafter_state, draft in zip(chosen, option.drafter.propose(parts, sizes), strict=True):
                drafter_state.draft = draft.cut(drafter_state.choice[1])
        return [drafter_state.cut() for drafter_state in drafter_states]

    def end_step(self, drafter_states: Sequence[AdaptiveState]) -> None:
        """End the step of all drafters."""
        end_all(drafter_states[0].costs.drafters, drafter_states)

    def plan_next(self, drafter_states: Sequence[AdaptiveState], drafts: Sequence[Draft]) -> list[DraftPlan | None]:
        """Choose for the step after the present one."""
        if any(each.planned is not None for each in drafter_states):
            for each in drafter_states:  # `propose` was not called: the present step is the plain one that was planned
                each.begin(PLAIN)
        loads = _loads(drafter_states)
        return [each.plan(draft, *load) for each, draft, load in zip(drafter_states, drafts, loads, strict=True)]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Adaptive) and self.strategies == other.strategies)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        parts = [repr(each.drafter if each.shape is None else each) for each in self.strategies]
        return f"Adaptive({', '.join(parts)})"


def _loads(drafter_states: Sequence[AdaptiveState]) -> list[tuple[int, float]]:
    """Return for each session the rows and the expected tokens of the others, which share its forward."""
    rows, tokens = sum([each.rows for each in drafter_states]), sum([each.tokens for each in drafter_states])
    return [(rows - each.rows, tokens - each.tokens) for each in drafter_states]
