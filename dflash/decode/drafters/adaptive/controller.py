"""What there is to choose from, and what is known of it, for all sessions of a model."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dflash.decode.drafters.adaptive.cost_model import CostTable
from dflash.decode.drafters.adaptive.draft_choice import BatchLoad, DraftChoice, PlacedChoice
from dflash.decode.drafters.adaptive.draft_option import SIZES, DraftOption
from dflash.decode.drafters.adaptive.latency import DraftLatency, ForwardLatency
from dflash.decode.drafting.drafter import Drafter, Strategy

if TYPE_CHECKING:
    from dflash.decode.step import Step

FULL = (1, 3, 7, 15, 23, 31, 47, 63)
"""On a GPU, where the rows of a forward are rounded up and each size is prepared once, guesses that fill it."""

_UNSETTLED = 16
"""Steps that are remembered until prices are asked for. One whose texts were begun anew is never heard of, and makes way."""


class Controller:
    """Options, and what their steps take on this device; `dflash.decode.drafters.measures` makes one.

    Parameters
    ----------
    strategies : sequence of Strategy
        Drafters and the largest shapes that they may fill.
    forwards : ForwardLatency
        Of the model that is guessed for; all choices of a model that capture the same layers share it.
    on_host : bool
        Whether that runs on the CPU.
    """

    def __init__(self, strategies: Sequence[Strategy], forwards: ForwardLatency, *, on_host: bool) -> None:
        self.drafters: list[Drafter] = list(dict.fromkeys(each.drafter for each in strategies))
        self._on_host = on_host
        sizes = SIZES if on_host else FULL
        self.options = [DraftOption(each, self.drafters.index(each.drafter), sizes) for each in strategies]
        self.forwards, self.overhead = forwards, DraftLatency()
        self.instant = [option for option in self.options if option.instant]
        self.n_steps = 0
        self._placed: deque[list[PlacedChoice]] = deque(maxlen=_UNSETTLED)

    def prices(self, others: BatchLoad) -> CostTable:
        """What steps take at present."""
        self._settle()
        rows, forwards, slow = others.rows + 1, self.forwards.seconds, self.forwards.scale
        forward = [forwards(rows + n) for n in range(1 + max((option.most for option in self.options), default=0))]
        # on a GPU, a forward and what is beside it go on at the same time: known is the whole step of one text
        more = forward if self._on_host else [seconds - forwards(1 + n) for n, seconds in enumerate(forward)]
        asked = {
            option: [(n, more[round(option.filled * n)] + slow * option.extra.seconds(n)) for n in option.sizes]
            for option in self.options
            if not option.instant
        }
        overhead = self.overhead.seconds(0)
        unasked = [more[0] + seconds - forward[0] + slow * overhead for seconds in forward]
        waiting = {
            option: slow * (option.extra.seconds(0) - overhead)
            for option in self.options
            if option.instant and option.extra.is_known
        }
        return CostTable(unasked, waiting, asked, others.tokens)

    def placed(self, bets: list[PlacedChoice]) -> None:
        """Remember the bets of a step that is about to be run."""
        self.n_steps += 1
        self._placed.append(bets)

    def _settle(self) -> None:
        """See what became of those whose steps are over."""
        all_placed, self._placed = self._placed, deque(maxlen=_UNSETTLED)
        for placed in all_placed:
            steps = [each.step for each in placed]
            if None in steps:
                self._placed.append(placed)
                continue
            batch = sum([1 + each.drafted for each in placed])
            if steps[0].batch == batch and all(step.tokens and not step.prefilled for step in steps):
                self._learn([each.bet for each in placed], steps)

    def _learn(self, bets: Sequence[DraftChoice], steps: Sequence[Step]) -> None:
        """From one step of some sessions."""
        first, option = steps[0], bets[0].option
        took = first.propose + first.forward + sum([step.verify + step.commit for step in steps])
        if self._on_host:
            self.forwards.learn(first.batch, first.forward)
        if all(bet.ready and bet.option is option for bet in bets):
            extra = self.overhead if option is None else option.extra
            n = round(sum([bet.n for bet in bets]) / len(bets)) if option is not None and not option.instant else 0
            forwards = self.forwards.seconds
            forward = first.forward if self._on_host else forwards(first.batch) - forwards(1 + n)
            extra.learn(n, max(took - forward, 0.0) / self.forwards.scale)
