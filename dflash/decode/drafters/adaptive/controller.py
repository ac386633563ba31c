"""Draft options of one `Adaptive`, with statistics over all sessions of a model."""

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
"""Draft sizes on a GPU: each fills a captured graph, whose rows are rounded up."""

_UNSETTLED = 16
"""Most steps that are stored until the next cost table. A step of restarted sessions never finishes and is dropped."""


class Controller:
    """Draft options and their measured latencies on this device. `dflash.decode.drafters.measures` makes one.

    Parameters
    ----------
    strategies : sequence of Strategy
        Drafters and the largest shapes that they may fill.
    forwards : ForwardLatency
        Forwards of the target; shared by all controllers of a model that capture the same layers.
    on_host : bool
        True if the target runs on the CPU.
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

    def costs(self, others: BatchLoad) -> CostTable:
        """Return what steps cost at present, beside the load of the other sessions."""
        self._learn_from_finished()
        rows, forwards, slow = others.rows + 1, self.forwards.seconds, self.forwards.scale
        forward = [forwards(rows + n) for n in range(1 + max((option.most for option in self.options), default=0))]
        # on a GPU, drafting and forward overlap: the latency of a whole step of one session was measured
        more = forward if self._on_host else [seconds - forwards(1 + n) for n, seconds in enumerate(forward)]
        with_drafter = {
            option: [(n, more[round(option.filled * n)] + slow * option.extra.seconds(n)) for n in option.sizes]
            for option in self.options
            if not option.instant
        }
        overhead = self.overhead.seconds(0)
        without_drafter = [more[0] + seconds - forward[0] + slow * overhead for seconds in forward]
        waiting = {
            option: slow * (option.extra.seconds(0) - overhead)
            for option in self.options
            if option.instant and option.extra.is_known
        }
        return CostTable(without_drafter, waiting, with_drafter, others.tokens)

    def record(self, choices: list[PlacedChoice]) -> None:
        """Store the choices of the step that runs next."""
        self.n_steps += 1
        self._placed.append(choices)

    def _learn_from_finished(self) -> None:
        """Learn from the stored choices whose steps have finished."""
        records, self._placed = self._placed, deque(maxlen=_UNSETTLED)
        for record in records:
            steps = [step for each in record if (step := each.step) is not None]
            if len(steps) < len(record):
                self._placed.append(record)
                continue
            batch = sum([1 + each.drafted for each in record])
            if steps[0].batch == batch and all(step.tokens and not step.prefilled for step in steps):
                self._learn([each.choice for each in record], steps)

    def _learn(self, choices: Sequence[DraftChoice], steps: Sequence[Step]) -> None:
        """Update latencies with one step of one or more sessions."""
        first, option = steps[0], choices[0].option
        took = first.propose + first.forward + sum([step.verify + step.commit for step in steps])
        if self._on_host:
            self.forwards.learn(first.batch, first.forward)
        if all(choice.ready and choice.option is option for choice in choices):
            extra = self.overhead if option is None else option.extra
            asks = option is not None and not option.instant
            n = round(sum([choice.n for choice in choices]) / len(choices)) if asks else 0
            forwards = self.forwards.seconds
            forward = first.forward if self._on_host else forwards(first.batch) - forwards(1 + n)
            extra.learn(n, max(took - forward, 0.0) / self.forwards.scale)
