"""Choose from step to step who guesses, and how much."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dflash.decode.drafters.adaptive.controller import Choice, Option
from dflash.decode.drafters.adaptive.draft_choice import Bet
from dflash.decode.drafters.adaptive.session import Adapting, settle_others
from dflash.decode.drafters.composite import Snapshots, start_all
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.measures import measured_choice, measures_of
from dflash.decode.drafters.measuring import Parts, finished
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import NOTHING, Drafter, Drafting, Foreseen, Nothing, foreseen
from dflash.decode.drafting.shapes import Chain
from dflash.decode.strategy import Strategy
from dflash.errors import DFlashError, RequestError

if TYPE_CHECKING:
    from dflash.decode.session import Session

_log = logging.getLogger(__name__)

_PASSES = 7
"""Guesses of an MTP head, which takes a pass for each."""


_USUAL = Strategy(DFlash()), Strategy(MTP(), Chain(_PASSES)), Strategy(PromptLookup(most=15))
"""What there is to choose from where nothing is said, as far as it can be had."""


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

    def start(self, session: Session, model: Any, snapshot: Snapshots | None = None) -> Drafting:
        """Begin with each drafter."""
        self.prepare(model)
        choice: Choice = measures_of(model).choices.recall(self)
        return Adapting(choice, session, start_all(choice.drafters, session, model, snapshot))

    def propose(self, draftings: Sequence[Adapting], rooms: Sequence[int]) -> list[Draft]:
        """Choose for each session, then ask each drafter once."""
        return _propose(draftings, rooms)

    def foresee(self, draftings: Sequence[Adapting], drafts: Sequence[Draft]) -> list[Foreseen]:
        """Choose for the step after the one under way."""
        return _foresee(draftings, drafts)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Adaptive) and self.strategies == other.strategies)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        parts = [repr(each.drafter if each.shape is None else each) for each in self.strategies]
        return f"Adaptive({', '.join(parts)})"


def _propose(draftings: Sequence[Adapting], rooms: Sequence[int]) -> list[Draft]:
    # on a GPU this is what the next forward waits for, so that most is done while a step is under way: see `_foresee`
    if any(drafting.next is None for drafting in draftings):
        settle_others(draftings)
    asked: dict[Option, list[int]] = {}
    for j, (drafting, room) in enumerate(zip(draftings, rooms, strict=True)):
        if drafting.open:
            drafting.look(room)
        option = drafting.decide(room).option
        if option is not None and not option.instant:
            asked.setdefault(option, []).append(j)
    drafts = [drafting.taken() for drafting in draftings]
    for option, which in asked.items():
        found = option.ask([draftings[j].parts[option.part] for j in which], [draftings[j].bet.n for j in which])
        for j, draft in zip(which, found, strict=True):
            drafts[j] = draftings[j].worth_verifying(draft)
    draftings[0].choice.placed([drafting.place(draft) for drafting, draft in zip(draftings, drafts, strict=True)])
    return drafts


def _foresee(draftings: Sequence[Adapting], drafts: Sequence[Draft]) -> list[Foreseen]:
    if any(drafting.next is not None for drafting in draftings):
        # nobody was asked: the step under way is the plain one that was foreseen
        for drafting in draftings:
            drafting.bet, drafting.next = drafting.next or Bet(None), None
        draftings[0].choice.placed([drafting.place(EMPTY) for drafting in draftings])
    settle_others(draftings)
    return [_follow(drafting, draft) for drafting, draft in zip(draftings, drafts, strict=True)]


def _room(drafting: Adapting, draft: Draft) -> int:
    """Guesses that there is room for after a step, if it gives as many tokens as others."""
    tokens = min(1 + len(draft), round(drafting.tokens))
    return min(drafting.room, drafting.session.limit - len(drafting.session.text) - tokens - 1)


def _follow(drafting: Adapting, draft: Draft) -> Foreseen:
    """What one session does next; nothing is known where what was found lately would have paid, and may still."""
    room = _room(drafting, draft)
    drafting.look(room)
    drafting.open = True
    if room < 1 or drafting.session.forced:
        return None
    drafting.next = bet = drafting.choose(room)
    drafting.open = drafting.looked_up(bet) is not None
    if drafting.open:
        return None
    if bet.option is None:
        return NOTHING
    part = drafting.parts[bet.option.part]
    bet.option.tell(part, bet.n)
    return foreseen(bet.option.drafter, [part], [draft])[0]
