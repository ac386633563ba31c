"""What there is to choose from, and what is known of it, for all sessions of a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dflash.decode.drafter import Drafter
from dflash.decode.drafters.odds import Odds
from dflash.decode.drafters.pace import Extra, Forwards
from dflash.decode.shapes import Chain, Shape, Tree
from dflash.decode.strategy import Strategy

if TYPE_CHECKING:
    from dflash.decode.session import Session
    from dflash.decode.step import Step

_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 22, 28, 32, 40, 48, 63)
_FULL = (1, 3, 7, 15, 23, 31, 47, 63)
"""On a GPU, where the rows of a forward are rounded up and each size is prepared once, guesses that fill it."""

_DEPTH = 15
_SHARE = 0.02
_OFTEN, _RARELY = 16, 512


class Option:
    """One drafter and the shape that it may fill.

    Parameters
    ----------
    strategy : Strategy
        Drafter and largest shape.
    part : int
        Which of the drafters it is.
    sizes : sequence of int
        Numbers of guesses that make sense on the device.

    Attributes
    ----------
    instant : bool
        Whether its guesses take no time.
    most : int
        Guesses that it may be asked for.
    sizes : int (M,)
        Numbers of guesses to choose from.
    odds : Odds
        Of its guesses, over all sessions.
    extra : Extra
        What it costs beside the forward.
    filled : float
        How many of the guesses that were asked for it makes.
    """

    def __init__(self, strategy: Strategy, part: int, sizes: Sequence[int] = _SIZES) -> None:
        self.drafter, self.shape, self.part = strategy.drafter, strategy.shape or Chain(), part
        self.instant = strategy.drafter.instant
        self.most = self.shape.budget if isinstance(self.shape, Tree) else self.shape.depth or _DEPTH
        self.sizes = np.array(sorted({n for n in sizes if n < self.most} | {self.most}))
        self.odds, self.extra, self.filled = Odds(0.99, 4.0), Extra(), 1.0
        self._idle, self._interval = 0, _OFTEN

    @property
    def is_due(self) -> bool:
        """Whether it was not used for so long that more may be known by trying it."""
        return self._idle >= self._interval

    def passed(self, *, chosen: bool, tried: bool) -> None:
        """A step passes in which it is the best choice, is tried, or neither."""
        self._idle = 0 if chosen or tried else self._idle + 1
        if chosen or tried:
            self._interval = _OFTEN if chosen else min(2 * self._interval, _RARELY)

    def sized(self, n: int) -> Shape:
        """The shape of so many guesses."""
        if isinstance(self.shape, Tree):
            return Tree(n, self.shape.depth, self.shape.width)
        return Chain(n)


class Bet(NamedTuple):
    """Guesses of one session's step.

    Parameters
    ----------
    option : Option or None
        None is plain.
    n : int
        Guesses to ask for.
    rate : float
        Tokens a second that the best choice is expected to give.
    tried : bool
        Whether it is not that choice, and made to learn.
    ready : bool
        Whether the drafter was asked in the step before, too, and so knows all of the text but the last tokens.
    """

    option: Option | None
    n: int = 0
    rate: float = 0.0
    tried: bool = False
    ready: bool = True


class Placed(NamedTuple):
    """A bet, and where to see what became of it.

    Parameters
    ----------
    bet : Bet
    drafted : int
        Guesses that were made.
    session : Session
    n_steps : int
        Steps of the session before it.
    """

    bet: Bet
    drafted: int
    session: Session
    n_steps: int

    @property
    def step(self) -> Step | None:
        """The step that was made of it, if that was the next."""
        session = self.session
        told = len(session.steps) + len(session.held) == self.n_steps + 1
        return (session.held or session.steps)[-1] if told else None


class Choice:
    """Options, and the account of what was spent on trying them.

    Parameters
    ----------
    strategies : sequence of Strategy
        Drafters and the largest shapes that they may fill.
    model : Model
        That is guessed for.
    """

    def __init__(self, strategies: Sequence[Strategy], model: Any) -> None:
        self.drafters: list[Drafter] = list(dict.fromkeys(each.drafter for each in strategies))
        self._on_host = model.device == "cpu"
        sizes = _SIZES if self._on_host else _FULL
        self.options = [Option(each, self.drafters.index(each.drafter), sizes) for each in strategies]
        self.forwards, self.plain = Forwards(model, _taps(model, self.drafters)), Extra()
        self._spent = self._total = 0.0
        self._placed: list[Placed] = []

    def affords(self, seconds: float) -> bool:
        """Whether so much may be lost by trying."""
        return self._spent + seconds <= _SHARE * self._total

    def rates(
        self, option: Option | None, odds: Odds | None, room: int, others: tuple[float, float]
    ) -> tuple[Any, Any, Any]:
        """Sizes of an option that there is room for, seconds of a step with each, and the tokens that it gives.

        Parameters
        ----------
        option : Option or None
            None is plain: no guess.
        odds : Odds
            Of the session's text.
        room : int
            Most guesses.
        others : (float, float)
            Rows and tokens that other sessions have in a step.
        """
        if option is None or odds is None:
            sizes, filled, extra, tokens = np.zeros(1, np.int64), 1.0, self.plain, np.ones(1)
        else:
            sizes, filled, extra = option.sizes[option.sizes <= room], option.filled, option.extra
            tokens = odds.tokens()[sizes]
        rows, more = others
        return sizes, self.forwards.seconds(rows + 1 + filled * sizes) + extra.seconds(sizes), more + tokens

    def placed(self, bets: Iterable[Placed]) -> None:
        """Remember the bets of a step that is about to be run."""
        self._placed = list(bets)

    def settle(self) -> None:
        """See what became of them."""
        placed, self._placed = self._placed, []
        steps = [step for each in placed if (step := each.step) is not None]
        if not placed or len(steps) < len(placed):
            return
        batch = sum(1 + each.drafted for each in placed)
        if steps[0].batch == batch and all(step.tokens and not step.prefilled for step in steps):
            self._learn([each.bet for each in placed], steps)

    def _learn(self, bets: Sequence[Bet], steps: Sequence[Step]) -> None:
        """From one step of some sessions."""
        first = steps[0]
        took = first.propose + first.forward + sum(step.verify + step.commit for step in steps)
        forward, used = first.forward, {bet.option for bet in bets}
        if self._on_host or used == {None}:
            self.forwards.learn(first.batch, forward)
        else:
            # on a device, guesses are still being made when the forward is launched
            forward = float(self.forwards.seconds(first.batch))
        if len(used) == 1 and all(bet.ready for bet in bets):
            extra = self.plain if bets[0].option is None else bets[0].option.extra
            extra.learn(round(sum(bet.n for bet in bets) / len(bets)), max(took - forward, 0.0))
        self._total += took
        if tried := [bet for bet in bets if bet.tried]:
            lost = took - sum(len(step.tokens) for step in steps) / tried[0].rate
            self._spent = max(self._spent + lost, 0.0)


def _taps(model: Any, drafters: Sequence[Drafter]) -> tuple[int, ...]:
    """Layers of the model that draft models look at: a forward that keeps them is another one on a GPU."""
    drafts = [model.companions.get(drafter) for drafter in drafters]
    return tuple(sorted({layer for draft in drafts for layer in getattr(getattr(draft, "config", None), "taps", ())}))
