"""Choose from step to step who guesses, and how much."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dflash.decode.drafters.adaptive.controller import Controller
from dflash.decode.drafters.adaptive.draft_choice import DraftChoice
from dflash.decode.drafters.adaptive.draft_option import DraftOption
from dflash.decode.drafters.adaptive.session import AdaptiveState, share_batch_load
from dflash.decode.drafters.composite import CompositeSnapshot, start_all
from dflash.decode.drafters.dflash import DRAFT_OPTIONS, DFlash
from dflash.decode.drafters.measures import measured_choice, measures_of
from dflash.decode.drafters.measuring import Parts, finished
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import NO_DRAFT, Drafter, DrafterState, NextStep, Nothing, Strategy, planned_next
from dflash.decode.drafting.shapes import Chain
from dflash.decode.registry import NameCall, Named, name, register
from dflash.errors import DFlashError, RequestError

if TYPE_CHECKING:
    from dflash.decode.view import SessionView

_log = logging.getLogger(__name__)

_PASSES = 7
"""Guesses of an MTP head, which takes a pass for each."""


_USUAL = Strategy(DFlash()), Strategy(MTP(), Chain(_PASSES)), Strategy(PromptLookup(n_draft=15))
"""What there is to choose from where nothing is said, as far as it can be had."""


def _from_name(call: NameCall) -> Named:
    if call.inner is not None:
        return Named(Adaptive(*(Strategy(*part) for part in call.inner)))
    return Named(Adaptive(DFlash(**call.options), PromptLookup()) if call.options else Adaptive())


def _to_name(strategy: Strategy) -> str:
    strategies = strategy.drafter.strategies
    return f"adaptive({', '.join(map(name, strategies))})" if strategies else "adaptive"


@register("adaptive", brackets="optional", takes=DRAFT_OPTIONS, make=_from_name, spell=_to_name)
class Adaptive(Drafter):
    """Guess with whatever gives most tokens a second at the moment, as much as pays, or not at all.

    A step with n guesses is worth ``(1 + sum of their chances) / (seconds of the guesses + seconds of a forward with n more
    rows)``, with the seconds of this device. Who is asked, and for how much, follows from how often its guesses were right,
    here and in other texts; how much of what it says is verified, from how sure it is of it and how often it was right
    then. What takes no time to guess is always looked at. Whoever is not asked is slowly forgotten, and so asked again in
    the end. The text is what it would be anyway.

    Parameters
    ----------
    *strategies : Strategy or Drafter
        What there is to choose from. Of a chain, any depth up to its own; of a tree, any number of guesses up to its own.
        With none: `DFlash()`, `MTP()` and `PromptLookup()`, as far as they can be had.

    Raises
    ------
    RequestError
        If one of them has recoveries, which belong around all of it.

    Notes
    -----
    It learns as it goes, over all texts of a model. On a GPU it chooses before the step under way is known, and guesses are
    not looked at before they are verified.
    """

    def __init__(self, *strategies: Strategy | Drafter) -> None:
        self.strategies = tuple(Strategy.of(each) for each in strategies)
        self.needs_all = bool(strategies)
        self.parts = tuple(dict.fromkeys(each.drafter for each in self.strategies or _USUAL))
        for strategy in self.strategies:
            if strategy.recoveries:
                raise RequestError(f"{strategy!r} has recoveries: they go around, as in Adaptive(...) | LoopGuard()")
        self._hash = hash((Adaptive, self.strategies))

    def is_prepared(self, model: Any) -> bool:
        """Return whether the model was measured for it."""
        return self in measures_of(model).choices

    def prepare(self, model: Any) -> None:
        """Prepare each drafter, and measure of the model what was not measured before."""
        if self.is_prepared(model):
            return
        for part in self.parts:
            try:
                part.prepare(model)
            except DFlashError as error:
                if self.needs_all:
                    raise
                _log.info("Adaptive does without %r: %s", part, error)
        finished(self.prepare_in_parts(model))

    def prepare_in_parts(self, model: Any) -> Parts[None]:
        """Measure in the thread that owns the model, a forward or a text of few tokens at a time."""
        yield
        strategies = self.strategies or [each for each in _USUAL if each.drafter.is_prepared(model)]
        strategies = [each for each in strategies if type(each.drafter) is not Nothing]
        choice = yield from measured_choice(strategies, model)
        measures_of(model).choices.keep(self, choice)

    def start(self, session: SessionView, model: Any, snapshot: CompositeSnapshot | None = None) -> DrafterState:
        """Begin with each drafter."""
        self.prepare(model)
        choice: Controller = measures_of(model).choices.recall(self)
        return AdaptiveState(choice, session, start_all(choice.drafters, session, model, snapshot))

    def propose(self, drafter_states: Sequence[AdaptiveState], max_drafts: Sequence[int]) -> list[Draft]:
        """Choose for each session, then ask each drafter once."""
        return _propose(drafter_states, max_drafts)

    def plan_next(self, drafter_states: Sequence[AdaptiveState], drafts: Sequence[Draft]) -> list[NextStep]:
        """Choose for the step after the one under way."""
        return _plan_next(drafter_states, drafts)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Adaptive) and self.strategies == other.strategies)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        parts = [repr(each.drafter if each.shape is None else each) for each in self.strategies]
        return f"Adaptive({', '.join(parts)})"


def _propose(drafter_states: Sequence[AdaptiveState], max_drafts: Sequence[int]) -> list[Draft]:
    # on a GPU this is what the next forward waits for, so that most is done while a step is under way: see `_plan_next`
    if any(drafter_state.next is None for drafter_state in drafter_states):
        share_batch_load(drafter_states)
    asked: dict[DraftOption, list[int]] = {}
    for j, (drafter_state, max_draft) in enumerate(zip(drafter_states, max_drafts, strict=True)):
        if drafter_state.open:
            drafter_state.look(max_draft)
        option = drafter_state.decide(max_draft).option
        if option is not None and not option.instant:
            asked.setdefault(option, []).append(j)
    drafts = [drafter_state.taken() for drafter_state in drafter_states]
    for option, which in asked.items():
        found = option.ask([drafter_states[j].parts[option.part] for j in which], [drafter_states[j].bet.n for j in which])
        for j, draft in zip(which, found, strict=True):
            drafts[j] = drafter_states[j].worth_verifying(draft)
    drafter_states[0].choice.placed(
        [drafter_state.place(draft) for drafter_state, draft in zip(drafter_states, drafts, strict=True)]
    )
    return drafts


def _plan_next(drafter_states: Sequence[AdaptiveState], drafts: Sequence[Draft]) -> list[NextStep]:
    if any(drafter_state.next is not None for drafter_state in drafter_states):
        # nobody was asked: the step under way is the plain one that was foreseen
        for drafter_state in drafter_states:
            drafter_state.bet, drafter_state.next = drafter_state.next or DraftChoice(None), None
        drafter_states[0].choice.placed([drafter_state.place(EMPTY) for drafter_state in drafter_states])
    share_batch_load(drafter_states)
    return [_follow(drafter_state, draft) for drafter_state, draft in zip(drafter_states, drafts, strict=True)]


def _room(drafter_state: AdaptiveState, draft: Draft) -> int:
    """Guesses that there is room for after a step, if it gives as many tokens as others."""
    tokens = min(1 + len(draft), round(drafter_state.tokens))
    return min(drafter_state.max_draft, drafter_state.session.max_length - len(drafter_state.session.token_ids) - tokens - 1)


def _follow(drafter_state: AdaptiveState, draft: Draft) -> NextStep:
    """What one session does next; nothing is known where what was found lately would have paid, and may still."""
    max_draft = _room(drafter_state, draft)
    drafter_state.look(max_draft)
    drafter_state.open = True
    if max_draft < 1 or drafter_state.session.forced_ids:
        return None
    drafter_state.next = bet = drafter_state.choose(max_draft)
    drafter_state.open = drafter_state.looked_up(bet) is not None
    if drafter_state.open:
        return None
    if bet.option is None:
        return NO_DRAFT
    part = drafter_state.parts[bet.option.part]
    bet.option.tell(part, bet.n)
    return planned_next(bet.option.drafter, [part], [draft])[0]
