"""Choose from step to step who guesses, and how much."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dflash.decode.draft import EMPTY, Draft
from dflash.decode.drafter import Drafter, Drafting, Nothing, Rows
from dflash.decode.drafters.choice import Bet, Choice, Option, Placed
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.lookup import PromptLookup
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafters.odds import Odds
from dflash.decode.drafters.together import Snapshots, Together, start_all
from dflash.decode.shapes import Shape
from dflash.decode.strategy import Strategy
from dflash.errors import DFlashError, RequestError

if TYPE_CHECKING:
    from dflash.decode.session import Session
    from dflash.model.batch import Forward

_log = logging.getLogger(__name__)

_BURST = 3
_DEEPER = 1.4
"""A try may take so much longer than the best of its kind, since deep guesses tell of shallow ones, too."""

_TRUST = 12.0
_KEPT = 3


class Adaptive(Drafter):
    """Guess with whatever gives most tokens a second at the moment, as much as pays, or not at all.

    A step with n guesses is worth ``(1 + sum of their chances) / (seconds of the guesses + seconds of a forward with n more
    rows)``; the chances are those of the text so far, the seconds those of this device. What is not used is tried again now
    and then, for a small part of the time. The text is what it would be anyway.

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
    It learns as it goes: short texts end before it has found the best. On a GPU its steps wait for the host, which costs a
    small model more than it gains.
    """

    def __init__(self, *strategies: Strategy | Drafter) -> None:
        self.strategies = tuple(Strategy.of(each) for each in strategies)
        for strategy in self.strategies:
            if strategy.recoveries:
                raise RequestError(f"{strategy!r} has recoveries: they go around, as in Adaptive(...) | LoopGuard()")
        self._hash = hash((Adaptive, self.strategies))

    def prepare(self, model: Any) -> None:
        """Prepare each drafter, and measure the model."""
        if self not in model.companions:
            strategies = [each for each in self.strategies if type(each.drafter) is not Nothing]
            for each in strategies:
                each.drafter.prepare(model)
            model.companions[self] = Choice(strategies if self.strategies else list(_usual(model)), model)

    def start(self, session: Session, model: Any, snapshot: Snapshots | None = None) -> Drafting:
        """Begin with each drafter."""
        self.prepare(model)
        choice: Choice = model.companions[self]
        return _Adapting(choice, session, start_all(choice.drafters, session, model, snapshot))

    def propose(self, draftings: Sequence[_Adapting], rooms: Sequence[int]) -> list[Draft]:
        """Choose for each session, then ask each drafter once."""
        return _propose(draftings, rooms)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Adaptive) and self.strategies == other.strategies)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        parts = [repr(each.drafter if each.shape is None else each) for each in self.strategies]
        return f"Adaptive({', '.join(parts)})"


def _usual(model: Any) -> Iterator[Strategy]:
    """What can be had for a model."""
    for drafter in (DFlash(), MTP(), PromptLookup()):
        try:
            drafter.prepare(model)
        except DFlashError as error:
            _log.info("Adaptive does without %r: %s", drafter, error)
        else:
            yield Strategy(drafter)


class _Adapting(Together):
    """Bets of one session.

    Attributes
    ----------
    choice : Choice
    bet : Bet
        Of the step under way.
    drafted : int
        Guesses in it.
    own : (float, float)
        Rows and tokens of its steps, on average.
    found : dict of Option to Draft
        Guesses that took no time, so that they are known before anything is chosen.
    """

    def __init__(self, choice: Choice, session: Session, parts: list[Drafting]) -> None:
        super().__init__(parts)
        self.choice, self.session, self.bet, self.drafted = choice, session, Bet(None), 0
        self._odds = {option: Odds(0.97, _TRUST, option.odds) for option in choice.options}
        self._burst: tuple[Option, int] | None = None
        self._before: Option | None = None
        self._left = 0
        self.found: dict[Option | None, Draft] = {}
        self.own = 1.0, 1.0

    def propose(self, room: int) -> Draft:
        return _propose([self], [room])[0]

    def observe(self, out: Forward, rows: Rows) -> None:
        super().observe(out, rows)
        if isinstance(rows, slice):
            return
        option, n = self.bet.option, self.bet.n
        rows_, tokens = self.own
        self.own = rows_ + 0.2 * (1 + self.drafted - rows_), tokens + 0.2 * (len(rows) - tokens)
        if option is None:
            return
        right = [row - rows[0] - 1 for row in rows[1:]]
        for odds in (self._odds[option], option.odds):
            odds.learn(n, right)
        option.filled += 0.05 * (self.drafted / n - option.filled)

    def again(self, room: int) -> Bet | None:
        """The bet of the step before, if it is good for some more steps: choosing takes time, too."""
        bet = self.bet
        instant = bet.option is not None and bet.option.instant
        if not self._left or bet.tried or instant or self._burst or bet.n > room or any(map(len, self.found.values())):
            return None
        self._left -= 1
        for option in self.choice.options:
            option.passed(chosen=option is bet.option, tried=False)
        return bet._replace(ready=True)

    def choose(self, room: int, others: tuple[float, float]) -> Bet:
        """Choose for the next step.

        Parameters
        ----------
        room : int
            Most guesses.
        others : (float, float)
            Rows and tokens of the other sessions in a step.
        """
        values = {}
        for option in (None, *self.choice.options):
            most = min(room, len(self.found[option])) if option in self.found else room
            sizes, seconds, tokens = self.choice.rates(option, self._odds.get(option), most, others)
            if len(sizes):
                best = int((tokens / seconds).argmax())
                deep = int(sizes[seconds <= _DEEPER * seconds[best]].max())
                values[option] = float(tokens[best] / seconds[best]), int(sizes[best]), float(seconds[best]), deep
        best = max(values, key=lambda option: values[option][0])
        rate, n, *_ = values[best]
        tried = self._try(values, best)
        used = best if tried is None else tried
        if tried is not None:
            n = values[tried][3]
        for option in self.choice.options:
            option.passed(chosen=option is best, tried=option is tried)
        before, self._before, self._left = self._before, used, _KEPT
        return Bet(used, n, rate, tried is not None, used is None or used is before)

    def _try(self, values: dict[Option | None, tuple[float, int, float, int]], best: Option | None) -> Option | None:
        """What to try instead of the best, if anything: for a few steps, since the first has to catch up with the text."""
        if self._burst is not None:
            option, left = self._burst
            self._burst = (option, left - 1) if left > 1 else None
            if option is not best and option in values:
                return option
        for option in self.choice.options:
            if option is best or option not in values or not option.is_due:
                continue
            rate, _, seconds, _ = values[option]
            if self.choice.affords(_BURST * seconds * (1 - rate / values[best][0])):
                self._burst = (option, _BURST - 1)
                return option
        return None


def _propose(draftings: Sequence[_Adapting], rooms: Sequence[int]) -> list[Draft]:
    choice = draftings[0].choice
    choice.settle()
    _look(draftings, rooms)
    _bet(draftings, rooms)
    drafts = [drafting.found.get(drafting.bet.option, EMPTY).cut(drafting.bet.n) for drafting in draftings]
    for option in choice.options:
        asked = [j for j, drafting in enumerate(draftings) if drafting.bet.option is option]
        if option.instant or not asked:
            continue
        sizes = [draftings[j].bet.n for j in asked]
        found = _ask(
            option, [draftings[j] for j in asked], sizes, [min(rooms[j], n) for j, n in zip(asked, sizes, strict=True)]
        )
        for j, draft in zip(asked, found, strict=True):
            drafts[j] = draft
    for drafting, draft in zip(draftings, drafts, strict=True):
        drafting.drafted = len(draft)
        drafting.by = type(drafting.bet.option.drafter).__name__ if drafting.bet.option and len(draft) else ""
    choice.placed(Placed(each.bet, each.drafted, each.session, _n_steps(each.session)) for each in draftings)
    return drafts


def _look(draftings: Sequence[_Adapting], rooms: Sequence[int]) -> None:
    """Let those guess whom it costs no time."""
    for drafting in draftings:
        drafting.found = {}
    for option in draftings[0].choice.options:
        if option.instant:
            for drafting, draft in zip(
                draftings, _ask(option, draftings, [option.most] * len(draftings), rooms), strict=True
            ):
                drafting.found[option] = draft


def _bet(draftings: Sequence[_Adapting], rooms: Sequence[int]) -> None:
    """Choose for each session; what others have in a step stands in the same forward."""
    owns = [drafting.own for drafting in draftings]
    all_rows, all_tokens = (sum(column) for column in zip(*owns, strict=True))
    for drafting, room, (rows, tokens) in zip(draftings, rooms, owns, strict=True):
        if room < 1 or drafting.session.forced:
            drafting.bet = Bet(None)
        else:
            drafting.bet = drafting.again(room) or drafting.choose(room, (all_rows - rows, all_tokens - tokens))


def _ask(option: Option, draftings: Sequence[_Adapting], sizes: Sequence[int], rooms: Sequence[int]) -> list[Draft]:
    """Guesses of one drafter for some sessions, so many for each."""
    parts = [drafting.parts[option.part] for drafting in draftings]
    for part, n in zip(parts, sizes, strict=True):
        _shape(part, option.sized(n))
    return option.drafter.propose(parts, rooms)


def _shape(part: Any, shape: Shape) -> None:
    """Tell a drafter, or all that it asks in turn, how much to guess."""
    if isinstance(part, Together):
        for each in part.parts:
            _shape(each, shape)
    else:
        part.shape = shape


def _n_steps(session: Session) -> int:
    return len(session.steps) + len(session.held)
