"""A drafter and its largest shape, among which `Adaptive` chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dflash.decode.drafters.adaptive.acceptance import AcceptanceRates, Calibration
from dflash.decode.drafters.adaptive.latency import DraftLatency
from dflash.decode.drafters.composite import CompositeState
from dflash.decode.drafting.draft import Draft
from dflash.decode.drafting.drafter import DrafterState, Strategy
from dflash.decode.drafting.shapes import Chain, Shape, Tree
from dflash.kernels.ragged import PENDING

SIZES = (1, 2, 3, 4, 5, 7, 10, 15, 22, 31, 47, 63)
"""Draft sizes to choose from on a CPU."""

_DEPTH = 15
"""Most draft tokens of a chain whose depth is not given."""


class DraftStats:
    """Acceptance statistics of one drafter: by position, and by its own scores.

    Parameters
    ----------
    n : int
        Most draft tokens.
    """

    def __init__(self, n: int) -> None:
        self.rates, self.calibration = AcceptanceRates(n), Calibration()

    def expected(self, draft: Draft) -> list[float]:
        """Return the acceptance rate of each draft token, given that those before it are accepted."""
        if draft.scores is None:
            return self.rates.expected[: len(draft)]
        return self.calibration.expected(draft.scores.tolist())


class DraftOption:
    """One drafter and its largest shape.

    Parameters
    ----------
    strategy : Strategy
        Drafter and largest shape.
    part : int
        Index of the drafter in `Controller.drafters`.
    sizes : sequence of int
        Draft sizes that are useful on the device.

    Attributes
    ----------
    instant : bool
        True if drafting takes next to no time.
    most : int
        Largest draft: at most what a forward can verify, even if the shape is larger.
    sizes : list of int
        Draft sizes to choose from, ascending.
    known : (DraftStats, DraftStats)
        Statistics over all greedy sessions and over all sampled sessions.
    extra : DraftLatency
        Seconds of a step with this drafter: on a CPU those beside the forward, on a GPU all. Relative to a forward that
        takes as long as it did when it was measured.
    filled : float
        Average share of the requested draft tokens that the drafter makes.
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
        """Return the shape with `n` draft tokens."""
        if isinstance(self.shape, Tree):
            return Tree(n, self.shape.depth, self.shape.width)
        return Chain(n)

    def propose(self, parts: Sequence[DrafterState], sizes: Sequence[int]) -> list[Draft]:
        """Return drafts of the given sizes for several sessions."""
        for part, n in zip(parts, sizes, strict=True):
            self.set_size(part, n)
        return self.drafter.propose(parts, sizes)

    def set_size(self, part: DrafterState, n: int) -> None:
        """Set the draft size of one session's state, and of all states in it."""
        _shape(part, self.sized(n))


def _shape(part: Any, shape: Shape) -> None:
    if isinstance(part, CompositeState):
        for each in part.parts:
            _shape(each, shape)
    else:
        part.shape = shape
