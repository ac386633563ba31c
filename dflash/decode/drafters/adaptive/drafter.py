"""Choose drafter and draft size at every step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dflash.decode.drafters.adaptive.draft_choice import DraftChoice
from dflash.decode.drafters.adaptive.draft_option import DraftOption
from dflash.decode.drafters.adaptive.session import AdaptiveState, share_batch_load
from dflash.decode.drafters.composite import CompositeSnapshot, start_all
from dflash.decode.drafters.dflash import DRAFT_OPTIONS, DFlash
from dflash.decode.drafters.measures import measured_controller, measures_of
from dflash.decode.drafters.measuring import Parts, finished
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import NO_DRAFT, Drafter, NextStep, Nothing, Strategy, planned_next
from dflash.decode.drafting.shapes import Chain
from dflash.decode.registry import NameCall, Named, name, register
from dflash.errors import DFlashError, RequestError

if TYPE_CHECKING:
    from dflash.decode.view import SessionView
    from dflash.model.protocols.target import TargetModel

_log = logging.getLogger(__name__)

_MTP_DEPTH = 7
"""Most draft tokens of the MTP head, which takes a pass for each."""


_DEFAULT = Strategy(DFlash()), Strategy(MTP(), Chain(_MTP_DEPTH)), Strategy(PromptLookup(n_draft=15))
"""Strategies of `Adaptive()`; those that the model has no files for are left out."""


def _from_name(call: NameCall) -> Named:
    if call.inner is not None:
        return Named(Adaptive(*(Strategy(*part) for part in call.inner)))
    return Named(Adaptive(DFlash(**call.options), PromptLookup()) if call.options else Adaptive())


def _to_name(strategy: Strategy) -> str:
    assert isinstance(strategy.drafter, Adaptive)
    strategies = strategy.drafter.strategies
    return f"adaptive({', '.join(map(name, strategies))})" if strategies else "adaptive"


@register("adaptive", brackets="optional", takes=DRAFT_OPTIONS, make=_from_name, spell=_to_name)
class Adaptive(Drafter[AdaptiveState]):
    """At every step, use the drafter and draft size with the most expected tokens a second, or none.

    A step with n draft tokens is rated ``(1 + expected accepted tokens) / (seconds of drafting + seconds of a forward with n
    more rows)``, with latencies measured on this device. Drafter and size are chosen by acceptance rates, of this request
    and of others. The number of draft tokens that are verified also depends on the drafter's scores. Instant drafters are
    asked at every step. The statistics of an unused drafter decay to a prior, so that it is tried again. Output tokens do
    not change.

    Parameters
    ----------
    *strategies : Strategy or Drafter
        Drafters with their largest shapes: of a chain any smaller depth may be used, of a tree any smaller size. If none
        are given: `DFlash()`, `MTP()` and `PromptLookup()`, those of them that the model has files for.

    Raises
    ------
    RequestError
        If a strategy has recoveries; these belong around `Adaptive`.

    Notes
    -----
    Statistics cover all requests of a model. On a GPU, the choice is made before the result of the present step is known,
    and drafts are verified without reading them on the host.
    """

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
        return self in measures_of(model).choices

    def prepare(self, model: TargetModel) -> None:
        """Prepare each drafter and measure the latencies that are not known yet."""
        if self.is_prepared(model):
            return
        for part in self.parts:
            try:
                part.prepare(model)
            except DFlashError as error:
                if self.needs_all:
                    raise
                _log.info("Adaptive: %r is left out: %s", part, error)
        finished(self.prepare_in_parts(model))

    def prepare_in_parts(self, model: TargetModel) -> Parts[None]:
        """Measure latencies in the thread that owns the model: one forward, or a few tokens of one session, at a time."""
        yield
        strategies: Sequence[Strategy] = self.strategies or [each for each in _DEFAULT if each.drafter.is_prepared(model)]
        strategies = [each for each in strategies if type(each.drafter) is not Nothing]
        controller = yield from measured_controller(strategies, model)
        measures_of(model).choices.keep(self, controller)

    def start(self, session: SessionView, model: TargetModel, snapshot: CompositeSnapshot | None = None) -> AdaptiveState:
        """Start all drafters."""
        self.prepare(model)
        controller = measures_of(model).choices.recall(self)
        assert controller is not None, "`prepare` has stored it"
        return AdaptiveState(controller, session, start_all(controller.drafters, session, model, snapshot))

    def propose(self, drafter_states: Sequence[AdaptiveState], max_drafts: Sequence[int]) -> list[Draft]:
        """Choose for each session, then ask each chosen drafter once."""
        return _propose(drafter_states, max_drafts)

    def plan_next(self, drafter_states: Sequence[AdaptiveState], drafts: Sequence[Draft]) -> list[NextStep]:
        """Choose for the step after the present one."""
        return _plan_next(drafter_states, drafts)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Adaptive) and self.strategies == other.strategies)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        parts = [repr(each.drafter if each.shape is None else each) for each in self.strategies]
        return f"Adaptive({', '.join(parts)})"


def _propose(drafter_states: Sequence[AdaptiveState], max_drafts: Sequence[int]) -> list[Draft]:
    # on a GPU the next forward waits for this, so most of the work is done in `_plan_next`, while a step runs
    if any(drafter_state.next is None for drafter_state in drafter_states):
        share_batch_load(drafter_states)
    asked: dict[DraftOption, list[int]] = {}
    for j, (drafter_state, max_draft) in enumerate(zip(drafter_states, max_drafts, strict=True)):
        if drafter_state.open:
            drafter_state.propose_instant(max_draft)
        option = drafter_state.decide(max_draft).option
        if option is not None and not option.instant:
            asked.setdefault(option, []).append(j)
    drafts = [drafter_state.taken() for drafter_state in drafter_states]
    for option, which in asked.items():
        chosen = [drafter_states[j] for j in which]
        found = option.propose([each.parts[option.part] for each in chosen], [each.choice.n for each in chosen])
        for j, draft in zip(which, found, strict=True):
            drafts[j] = drafter_states[j].worth_verifying(draft)
    drafter_states[0].controller.record(
        [drafter_state.place(draft) for drafter_state, draft in zip(drafter_states, drafts, strict=True)]
    )
    return drafts


def _plan_next(drafter_states: Sequence[AdaptiveState], drafts: Sequence[Draft]) -> list[NextStep]:
    if any(drafter_state.next is not None for drafter_state in drafter_states):
        # `propose` was not called: the present step is the plain one that was planned
        for drafter_state in drafter_states:
            drafter_state.choice, drafter_state.next = drafter_state.next or DraftChoice(None), None
        drafter_states[0].controller.record([drafter_state.place(EMPTY) for drafter_state in drafter_states])
    share_batch_load(drafter_states)
    return [_planned(drafter_state, draft) for drafter_state, draft in zip(drafter_states, drafts, strict=True)]


def _max_draft_after(drafter_state: AdaptiveState, draft: Draft) -> int:
    """Return the room for draft tokens after a step that gives as many tokens as the average."""
    tokens = min(1 + len(draft), round(drafter_state.tokens))
    return min(drafter_state.max_draft, drafter_state.session.max_length - len(drafter_state.session.token_ids) - tokens - 1)


def _planned(drafter_state: AdaptiveState, draft: Draft) -> NextStep:
    """Choose the next draft of one session; None if an instant draft may still replace it."""
    max_draft = _max_draft_after(drafter_state, draft)
    drafter_state.propose_instant(max_draft)
    drafter_state.open = True
    if max_draft < 1 or drafter_state.session.forced_ids:
        return None
    drafter_state.next = choice = drafter_state.choose(max_draft)
    drafter_state.open = drafter_state.better_instant(choice) is not None
    if drafter_state.open:
        return None
    if choice.option is None:
        return NO_DRAFT
    part = drafter_state.parts[choice.option.part]
    choice.option.set_size(part, choice.n)
    return planned_next(choice.option.drafter, [part], [draft])[0]
