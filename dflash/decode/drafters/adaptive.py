"""Choose from step to step who guesses, and how much."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dflash.decode.draft import EMPTY, Draft
from dflash.decode.drafter import Drafter, Drafting, Nothing, Rows
from dflash.decode.drafters.choice import Bet, Choice, Option
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.lookup import PromptLookup
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafters.odds import Odds
from dflash.decode.drafters.together import Snapshots, Together, start_all
from dflash.decode.strategy import Strategy
from dflash.errors import DFlashError, RequestError

if TYPE_CHECKING:
    from dflash.decode.session import Session
    from dflash.decode.step import Step
    from dflash.model.batch import Forward

_log = logging.getLogger(__name__)

_BURST = 3
_OFTEN, _RARELY = 16, 512
_LEAST = 3


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
    """

    def __init__(self, *strategies: Strategy | Drafter) -> None:
        self.strategies = tuple(Strategy.of(each) for each in strategies)
        for strategy in self.strategies:
            if strategy.recoveries:
                raise RequestError(f"{strategy!r} has recoveries: they go around, as in Adaptive(...) | LoopGuard()")

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
        return isinstance(other, Adaptive) and self.strategies == other.strategies

    def __hash__(self) -> int:
        return hash((Adaptive, self.strategies))

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
    """

    def __init__(self, choice: Choice, session: Session, parts: list[Drafting]) -> None:
        super().__init__(parts)
        self.choice, self.session, self.bet, self.drafted = choice, session, Bet(None), 0
        self._odds = {option: Odds(0.97, 8.0, option.odds) for option in choice.options}
        self._idle = dict.fromkeys(choice.options, 0)
        self._interval = dict.fromkeys(choice.options, _OFTEN)
        self._burst: tuple[Option, int] | None = None
        self._own = 1.0, 1.0

    @property
    def step(self) -> Step:
        """The last one."""
        return (self.session.held or self.session.steps)[-1]

    def propose(self, room: int) -> Draft:
        return _propose([self], [room])[0]

    def observe(self, out: Forward, rows: Rows) -> None:
        super().observe(out, rows)
        option, n = self.bet.option, self.bet.n
        if isinstance(rows, slice) or option is None:
            return
        right = [row - rows[0] - 1 for row in rows[1:]]
        for odds in (self._odds[option], option.odds):
            odds.learn(n, right)
        option.filled += 0.05 * (self.drafted / n - option.filled)

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
            sizes, seconds, tokens = self.choice.rates(option, self._odds.get(option), room, others)
            if len(sizes):
                best = int((tokens / seconds).argmax())
                values[option] = float(tokens[best] / seconds[best]), int(sizes[best]), float(seconds[best])
        best = max(values, key=lambda option: values[option][0])
        rate, n, _ = values[best]
        tried = self._try(values, best)
        used = best if tried is None else tried
        if tried is not None:
            n = max(values[tried][1], min(_LEAST, room, int(tried.sizes[-1])))
        ready = used is None or self._idle[used] == 0
        for option in self._idle:
            self._idle[option] = 0 if option is used else self._idle[option] + 1
        return Bet(used, n, rate, tried is not None, ready)

    def _try(self, values: dict[Option | None, tuple[float, int, float]], best: Option | None) -> Option | None:
        """What to try instead of the best, if anything: for a few steps, since the first has to catch up with the text."""
        if self._burst is not None:
            option, left = self._burst
            self._burst = (option, left - 1) if left > 1 else None
            if option is not best and option in values:
                return option
            self._interval[option] = _OFTEN
            return None
        for option in self.choice.options:
            if option is best or option not in values or self._idle[option] < self._interval[option]:
                continue
            rate, _, seconds = values[option]
            if self.choice.affords(_BURST * seconds * (1 - rate / values[best][0])):
                self._interval[option] = min(2 * self._interval[option], _RARELY)
                self._burst = (option, _BURST - 1)
                return option
        return None

    def own(self) -> tuple[float, float]:
        """Rows and tokens of its step, on average."""
        rows, tokens = self._own
        step = self.step
        if step.tokens:
            self._own = rows + 0.2 * (1 + self.drafted - rows), tokens + 0.2 * (len(step.tokens) - tokens)
        return self._own


def _propose(draftings: Sequence[_Adapting], rooms: Sequence[int]) -> list[Draft]:
    choice = draftings[0].choice
    choice.settle()
    owns = [drafting.own() for drafting in draftings]
    all_rows, all_tokens = (sum(column) for column in zip(*owns, strict=True))
    for drafting, room, (rows, tokens) in zip(draftings, rooms, owns, strict=True):
        plain = room < 1 or bool(drafting.session.forced)
        drafting.bet = Bet(None) if plain else drafting.choose(room, (all_rows - rows, all_tokens - tokens))
    drafts = [EMPTY] * len(draftings)
    for i, drafter in enumerate(choice.drafters):
        asked = [j for j, drafting in enumerate(draftings) if (option := drafting.bet.option) and option.part == i]
        for j in asked:
            _shape(draftings[j].parts[i], draftings[j].bet)
        if asked:
            parts = [draftings[j].parts[i] for j in asked]
            for j, draft in zip(asked, drafter.propose(parts, [min(rooms[j], draftings[j].bet.n) for j in asked]), strict=True):
                drafts[j] = draft
    for drafting, draft in zip(draftings, drafts, strict=True):
        drafting.drafted = len(draft)
        drafting.by = type(drafting.bet.option.drafter).__name__ if len(draft) else ""
    choice.placed(draftings)
    return drafts


def _shape(part: Any, bet: Bet) -> None:
    """Tell a drafter, or all that it asks in turn, how much to guess."""
    for each in getattr(part, "parts", (part,)):
        each.shape = bet.option.sized(bet.n)
