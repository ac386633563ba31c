"""Milliseconds of steps on this device, and the draft size that gains most tokens for them."""

from collections.abc import Sequence
from typing import Any

from dflash.decode.drafters.adaptive.acceptance import AcceptanceRates, ObservedRatio
from dflash.decode.drafters.composite import CompositeState
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain, Shape, Tree
from dflash.kernels.ragged import PENDING

DEPTH = 15
"""Most draft tokens of a chain whose depth is not given: with the last token they fill the 16 rows of a kernel's tile."""


class Option:
    """A drafter and its largest shape, with acceptance rates over all requests.

    `extra` holds milliseconds of a step beside its forward by draft size, infinite for sizes that are not used, and `pace`
    the ratio to these since they were measured.
    """

    def __init__(self, strategy: Strategy, part: int) -> None:
        self.drafter, self.shape, self.part = strategy.drafter, strategy.shape or Chain(), part
        most = self.shape.budget if isinstance(self.shape, Tree) else self.shape.depth or DEPTH
        self.most = min(most, PENDING - 1)
        self.rates, self.extra, self.pace = AcceptanceRates(self.most), [0.0] * (self.most + 1), ObservedRatio()

    def shape_of(self, n: int) -> Shape:
        """Return the shape with `n` draft tokens."""
        return Tree(n, self.shape.depth, self.shape.width) if isinstance(self.shape, Tree) else Chain(n)

    def set_size(self, part: Any, n: int) -> None:
        """Set the draft size of one session's state, and of all states in it."""
        for each in part.parts if isinstance(part, CompositeState) else ():
            self.set_size(each, n)
        part.shape = self.shape_of(n)


class CostModel:
    """Milliseconds of a step: of its forward by the rows of all sessions, and of all else by drafter and draft size."""

    def __init__(self, strategies: Sequence[Strategy], forwards: Sequence[float], *, on_host: bool) -> None:
        self.drafters = list(dict.fromkeys(each.drafter for each in strategies))
        self.options = [Option(each, self.drafters.index(each.drafter)) for each in strategies]
        self.asked = [option for option in self.options if not option.drafter.instant]
        self.instant = [option for option in self.options if option.drafter.instant]
        self.forwards, self.plain, self.on_host, self.n_steps = forwards, 0.0, on_host, 0

    def step_ms(self, option: Option, rows: int) -> list[float]:
        """Return the milliseconds of a step by draft size, in a batch with `rows` rows beside the draft tokens."""
        pace, forwards = option.pace.factor, self.forwards[rows : rows + option.most + 1]
        return [ms + pace * extra for ms, extra in zip(forwards, option.extra, strict=True)]


def best_size(
    rates: Sequence[float], bias: float, ms: Sequence[float], *, tokens: float, worth: float, most: int
) -> tuple[float, int]:
    """Return the largest gain of a step, and the draft size up to `most` that has it.

    The gain is the expected number of tokens, `tokens` of them without a draft, minus ``worth * ms[n]``, the tokens that its
    time gives elsewhere. So a draft token pays if the probability that all up to it are accepted exceeds `worth` times its
    milliseconds. `bias` is the ratio of rejections to those that the acceptance `rates` predict.
    """
    best, size, survival = tokens - worth * ms[0], 0, 1.0
    for n in range(most):
        survival *= 1.0 - bias * (1.0 - rates[n])
        if survival <= 0.0:
            break
        tokens += survival
        gain = tokens - worth * ms[n + 1]
        if gain > best:
            best, size = gain, n + 1
    return best, size
