"""Expected tokens and milliseconds of drafts: the cost model, and the draft size that gains most."""

from collections.abc import Sequence

from dflash.decode.drafting.acceptance_rates import AcceptanceRates, ObservedRatio
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain, Shape, Tree
from dflash.kernels.ragged import PENDING

DEPTH = 15
"""Most draft tokens of a chain whose depth is not given: with the last token they fill the 16 rows of a kernel's tile."""

IDLE_DECAY = 0.998
"""Factor a step by which the observations of a drafter that is not used lose weight against the prior, so that it is tried
again: half in 350 steps. In replayed traces 0.995 cost the worst one 2 % of its speed in trials that gained nothing."""


class Variant:
    """A drafter with its largest shape and its acceptance rates.

    ``extra[n]`` times `pace` are the milliseconds that a draft of n tokens takes beside the forward.
    """

    def __init__(self, strategy: Strategy, part: int, most: int = PENDING - 1) -> None:
        self.drafter, self.shape, self.part = strategy.drafter, strategy.shape or Chain(), part
        self.most = min(self.shape.budget if isinstance(self.shape, Tree) else self.shape.depth or DEPTH, most)
        self.rates, self.extra, self.pace = AcceptanceRates(self.most), [0.0] * (self.most + 1), ObservedRatio()

    def shape_of(self, n: int) -> Shape:
        """Return the shape with `n` draft tokens."""
        return Tree(n, self.shape.depth, self.shape.width) if isinstance(self.shape, Tree) else Chain(n)


class CostModel:
    """Milliseconds of a step: of its forward by the rows of all sessions, and of all else by drafter and draft size.

    most: most draft tokens of each strategy; by default as many as any target has rows for.
    """

    def __init__(
        self, strategies: Sequence[Strategy], forwards: Sequence[float], *, on_host: bool, most: Sequence[int] = ()
    ) -> None:
        self.drafters = list(dict.fromkeys(each.drafter for each in strategies))
        found = zip(strategies, most or [PENDING - 1] * len(strategies), strict=True)
        self.options = [Variant(each, self.drafters.index(each.drafter), n) for each, n in found]
        self.asked = [option for option in self.options if not option.drafter.instant]
        self.instant = [option for option in self.options if option.drafter.instant]
        self.forwards, self.plain, self.on_host, self.n_steps = forwards, 0.0, on_host, 0

    def step_ms(self, option: Variant, rows: int) -> list[float]:
        """Return the milliseconds of a step by draft size, in a batch with `rows` rows beside the draft tokens."""
        pace, forwards = option.pace.factor, self.forwards[rows : rows + option.most + 1]
        return [ms + pace * extra for ms, extra in zip(forwards, option.extra, strict=True)]


def best_size(rates: Sequence[float], bias: float, ms: Sequence[float], *, tokens: float, worth: float) -> tuple[float, int]:
    """Return the largest gain of a step in tokens, and the draft size that has it.

    The step gives `tokens` without a draft. One more draft token pays if the probability that all up to it are accepted
    exceeds its milliseconds times their `worth` in tokens. `bias` is the ratio of rejections to those by the `rates`.
    """
    best, size, survival = tokens - worth * ms[0], 0, 1.0
    for n, rate in enumerate(rates, 1):
        survival *= 1.0 - bias * (1.0 - rate)
        if survival <= 0.0:
            break
        tokens += survival
        gain = tokens - worth * ms[n]
        if gain > best:
            best, size = gain, n
    return best, size
