"""What there is to choose from, and what is known of it, for all sessions of a model."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dflash.decode.draft import Draft
from dflash.decode.drafter import Drafter
from dflash.decode.drafters.bets import Bet, Others, Placed, Worth
from dflash.decode.drafters.odds import Clues, Odds, all_right
from dflash.decode.drafters.pace import Extra, Forwards, measured_extra, measured_steps, whole
from dflash.decode.shapes import Chain, Shape, Tree
from dflash.decode.strategy import Strategy

if TYPE_CHECKING:
    from dflash.decode.step import Step

_SIZES = (1, 2, 3, 4, 5, 7, 10, 15, 22, 31, 47, 63)
_FULL = (1, 3, 7, 15, 23, 31, 47, 63)
"""On a GPU, where the rows of a forward are rounded up and each size is prepared once, guesses that fill it."""

_DEPTH = 15
_DEEPER = 1.4
"""A try may take so much longer than the best of its kind, since deep guesses tell of shallow ones, too."""

_SHARE = 0.02
_OFTEN, _RARELY = 16, 512


class Known:
    """How good guesses are: before they are made, and by what their drafter thinks of them.

    Parameters
    ----------
    n : int
        Most guesses.
    """

    def __init__(self, n: int) -> None:
        self.odds, self.clues = Odds(n), Clues()

    def given(self, draft: Draft) -> list[float]:
        """For each guess of a draft, the chance that it is right if those before it are."""
        if draft.scores is None:
            return self.odds.given[: len(draft)]
        return self.clues.given(draft.scores.tolist())


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
    sizes : list of int
        Numbers of guesses to choose from.
    known : (Known, Known)
        Of its guesses over all texts, those whose tokens are the likeliest and those whose tokens are drawn.
    extra : Extra
        What it costs beside the forward.
    filled : float
        How many of the guesses that were asked for it makes.
    """

    def __init__(self, strategy: Strategy, part: int, sizes: Sequence[int] = _SIZES) -> None:
        self.drafter, self.shape, self.part = strategy.drafter, strategy.shape or Chain(), part
        self.instant = strategy.drafter.instant
        self.most = self.shape.budget if isinstance(self.shape, Tree) else self.shape.depth or _DEPTH
        self.sizes = sorted({n for n in sizes if n < self.most} | {self.most})
        self.known = Known(self.most), Known(self.most)
        self.extra, self.filled = Extra(), 1.0
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
        self.forwards, self.overhead = Forwards(model, _taps(model, self.drafters)), Extra()
        if not self._on_host and (plain := measured_steps(model, Strategy())):
            # forwards follow each other there without waiting for the host
            self.forwards.stretch(min(map(whole, plain)))
        for option in self.options:
            if not option.instant:
                # on a GPU, each size is captured when it is first met
                shapes = [option.sized(n) for n in ((1, option.most) if self._on_host else option.sizes)]
                option.extra = measured_extra(model, [Strategy(option.drafter, shape) for shape in shapes], self.forwards)
        self._spent = self._total = 0.0
        # a step of which nothing is heard, since its texts were begun anew, makes way for later ones
        self._placed: deque[list[Placed]] = deque(maxlen=3)

    def affords(self, seconds: float) -> bool:
        """Whether so much may be lost by trying."""
        return self._spent + seconds <= _SHARE * self._total

    def plain(self, others: Others) -> Worth:
        """A step without guesses."""
        seconds = self.forwards.seconds(others.rows + 1) + self.overhead.seconds(0)
        return Worth((others.tokens + 1) / seconds, 0, seconds)

    def best(self, option: Option, given: Sequence[float], room: int, others: Others) -> Worth:
        """The number of guesses, of at least 1 that there is room for, that gives most tokens a second.

        Parameters
        ----------
        option : Option
            Whom to ask.
        given : sequence of float
            For each guess the chance that it is right if those before it are.
        room : int
            Most guesses.
        others : Others
        """
        forward, extra, filled = self.forwards.seconds, option.extra.seconds, option.filled
        chances, tokens, done, rows = all_right(given), others.tokens + 1, 0, others.rows + 1
        sizes = [n for n in option.sizes if n <= room]
        took, rates = [], []
        for n in sizes:
            tokens, done = tokens + sum(chances[done:n]), n
            took.append(forward(rows + filled * n) + extra(n))
            rates.append(tokens / took[-1])
        best = max(range(len(sizes)), key=rates.__getitem__)
        deep = max(n for n, seconds in zip(sizes, took, strict=True) if seconds <= _DEEPER * took[best])
        return Worth(rates[best], sizes[best], took[best], deep)

    def gain(self, option: Option, given: Sequence[float], rate: float, others: Others) -> tuple[float, int]:
        """How many of some guesses to verify, and how many tokens more that gives than the forward's time is worth.

        Parameters
        ----------
        option : Option
            Who made them.
        given : sequence of float
            Their chances.
        rate : float
            Tokens a second that time is worth.
        others : Others
        """
        chances, tokens, done, found = all_right(given), others.tokens + 1, 0, []
        for n in (0, *(n for n in option.sizes if n < len(given)), len(given)):
            tokens, done = tokens + sum(chances[done:n]), n
            # what it took to ask is spent, but a step that nobody is asked for also has its cost
            seconds = option.extra.seconds(n) if option.instant and n else self.overhead.seconds(0)
            found.append((tokens - rate * (self.forwards.seconds(others.rows + 1 + n) + seconds), n))
        return max(found)

    def placed(self, bets: Iterable[Placed]) -> None:
        """Remember the bets of a step that is about to be run."""
        self._placed.append(list(bets))

    def settle(self) -> None:
        """See what became of those whose steps are over."""
        while self._placed and all(each.step is not None for each in self._placed[0]):
            placed = self._placed.popleft()
            steps = [each.step for each in placed]
            batch = sum(1 + each.drafted for each in placed)
            if steps[0].batch == batch and all(step.tokens and not step.prefilled for step in steps):
                self._learn([each.bet for each in placed], steps)

    def _learn(self, bets: Sequence[Bet], steps: Sequence[Step]) -> None:
        """From one step of some sessions."""
        first = steps[0]
        took = first.propose + first.forward + sum(step.verify + step.commit for step in steps)
        forward, used = first.forward, {bet.option for bet in bets}
        if self._on_host:
            self.forwards.learn(first.batch, forward)
        else:
            # guesses are still being made when the forward is launched; plain steps are one ahead as a rule
            forward = self.forwards.seconds(first.batch)
            if used == {None} and all(bet.ahead for bet in bets):
                self.forwards.learn(first.batch, took)
        if len(used) == 1 and all(bet.ready for bet in bets) and (self._on_host or used != {None}):
            extra = self.overhead if bets[0].option is None else bets[0].option.extra
            extra.learn(round(sum(bet.n for bet in bets) / len(bets)), max(took - forward, 0.0))
        self._total += took
        if tried := [bet for bet in bets if bet.tried]:
            lost = took - sum(len(step.tokens) for step in steps) / tried[0].rate
            self._spent = max(self._spent + lost, 0.0)


def _taps(model: Any, drafters: Sequence[Drafter]) -> tuple[int, ...]:
    """Layers of the model that draft models look at: a forward that keeps them is another one on a GPU."""
    drafts = [model.companions.get(drafter) for drafter in drafters]
    return tuple(sorted({layer for draft in drafts for layer in getattr(getattr(draft, "config", None), "taps", ())}))
