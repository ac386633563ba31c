"""A drafter and its largest shape, among which `Adaptive` chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dflash.decode.drafters.adaptive.acceptance import AcceptanceRates, Calibration
from dflash.decode.drafters.adaptive.latency import DraftLatency
from dflash.decode.drafters.composite import CompositeState
from dflash.decode.drafting.draft import Draft
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain, Shape, Tree
from dflash.kernels.ragged import PENDING

SIZES = (1, 2, 3, 4, 5, 7, 10, 15, 22, 31, 47, 63)

_DEPTH = 15


class DraftStats:
    """How good guesses are: before they are made, and by what their drafter thinks of them.

    Parameters
    ----------
    n : int
        Most guesses.
    """

    def __init__(self, n: int) -> None:
        self.rates, self.calibration = AcceptanceRates(n), Calibration()

    def given(self, draft: Draft) -> list[float]:
        """For each guess of a draft, the chance that it is right if those before it are."""
        if draft.scores is None:
            return self.rates.given[: len(draft)]
        return self.calibration.given(draft.scores.tolist())


class DraftOption:
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
        Guesses that it may be asked for: no more than a forward can verify, whatever its name says.
    sizes : list of int
        Numbers of guesses to choose from.
    known : (DraftStats, DraftStats)
        Of its guesses over all texts, those whose tokens are the likeliest and those whose tokens are drawn.
    extra : DraftLatency
        What a step that asks it takes, on a CPU beside its forward, when that takes as long as it was measured.
    filled : float
        How many of the guesses that were asked for it makes.
    """

    def __init__(self, strategy: Strategy, part: int, sizes: Sequence[int] = SIZES) -> None:
        self.drafter, self.shape, self.part = strategy.drafter, strategy.shape or Chain(), part
        self.instant = strategy.drafter.instant
        most = self.shape.budget if isinstance(self.shape, Tree) else self.shape.depth or _DEPTH
        self.most = min(most, PENDING - 1)
        self.sizes = sorted({n for n in sizes if n < self.most} | {self.most})
        self.known = DraftStats(self.most), DraftStats(self.most)
        self.extra, self.filled = DraftLatency(), 1.0

    def sized(self, n: int) -> Shape:
        """The shape of so many guesses."""
        if isinstance(self.shape, Tree):
            return Tree(n, self.shape.depth, self.shape.width)
        return Chain(n)

    def ask(self, parts: Sequence[Any], sizes: Sequence[int]) -> list[Draft]:
        """Its guesses for some texts, so many for each."""
        for part, n in zip(parts, sizes, strict=True):
            self.tell(part, n)
        return self.drafter.propose(parts, sizes)

    def tell(self, part: Any, n: int) -> None:
        """Let what knows about one text, or all that it asks in turn, guess so much."""
        _shape(part, self.sized(n))


def _shape(part: Any, shape: Shape) -> None:
    if isinstance(part, CompositeState):
        for each in part.parts:
            _shape(each, shape)
    else:
        part.shape = shape
