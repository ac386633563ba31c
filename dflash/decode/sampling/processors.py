"""Logits processors: the definitions of all sampling parameters, one row at a time.

A processor is called with a row of logits and the history of its node and returns logits. `Sampler` combines several of
them in fewer passes.
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dflash.decode.sampling.history import History
from dflash.kernels.sample import Offsets

Row = NDArray[np.float32]


class LogitsProcessor(Protocol):
    """Changes the logits of one node. A pure function: equal logits and history must give equal results."""

    def __call__(self, logits: Row, history: History) -> Row:
        """Return float32 (V,), minus infinity for masked tokens.

        Called in the engine's thread for each node of a draft that `verify` visits. `logits` may be changed in place.
        """


@dataclass(frozen=True, slots=True)
class Penalties:
    """Lower the logits of tokens that occurred before, as vLLM and OpenAI do.

    repetition: for a token of prompt or output: a positive logit is divided by it, another multiplied (Keskar et al. 2019,
        arXiv 1909.05858).
    """

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0

    def __call__(self, logits: Row, history: History) -> Row:
        """Return the changed logits; needs `History.counts`."""
        counts = history.counts
        assert counts is not None
        if not len(counts.ids):
            return logits
        values = logits[counts.ids]
        if self.repetition != 1:
            factor = np.float32(self.repetition)
            values = np.where(values > 0, values / factor, values * factor)
        if self.presence or self.frequency:
            values -= np.float32(self.frequency) * counts.produced
            values -= np.float32(self.presence) * (counts.produced > 0)
        logits[counts.ids] = values
        return logits


@dataclass(frozen=True, slots=True)
class Bias:
    """Add to the logits of some tokens.

    bias: token ids and the values added to their logits, as float32.
    offsets: the same as two arrays, made once, so that a node of a draft costs one vector operation.
    """

    bias: tuple[tuple[int, float], ...]
    offsets: Offsets = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", Offsets.of(self.bias))

    def __call__(self, logits: Row, history: History) -> Row:  # noqa: ARG002
        """Return the changed logits. The engine has checked that ids are below V."""
        self.offsets.add_to(logits)
        return logits


@dataclass(frozen=True, slots=True)
class TopK:
    """Keep the K likeliest tokens, lower ids first among equals. Any temperature keeps the same ones."""

    k: int

    def __call__(self, logits: Row, history: History) -> Row:  # noqa: ARG002
        """Return the masked logits; ``k >= V`` keeps all."""
        return _keep(logits, np.argsort(-logits, kind="stable")[: self.k])


@dataclass(frozen=True, slots=True)
class Temperature:
    """Divide by a temperature. The largest logit is made 0 first, so that nothing overflows."""

    temperature: float

    @property
    def scale(self) -> np.float32:
        """Factor of the logits."""
        return np.float32(1 / self.temperature)

    def __call__(self, logits: Row, history: History) -> Row:  # noqa: ARG002
        """Return ``(logits - max) / T``."""
        return (logits - logits.max()) * self.scale


@dataclass(frozen=True, slots=True)
class TopP:
    """Keep the likeliest tokens until together they have the probability P (Holtzman et al. 2019, arXiv 1904.09751)."""

    p: float

    def __call__(self, logits: Row, history: History) -> Row:  # noqa: ARG002
        """Return the masked logits; the token that reaches P is kept, too."""
        order = np.argsort(-logits, kind="stable")
        weights = np.exp(logits[order].astype(np.float64))
        mass = np.cumsum(weights)
        return _keep(logits, order[: np.searchsorted(mass, self.p * weights.sum()) + 1])


@dataclass(frozen=True, slots=True)
class MinP:
    """Keep tokens that are at least P times as likely as the likeliest one (Nguyen et al. 2024, arXiv 2407.01082)."""

    p: float

    @property
    def floor(self) -> np.float32:
        """Largest difference to the largest log-probability, at most 0."""
        return np.float32(np.log(self.p))

    def __call__(self, logits: Row, history: History) -> Row:  # noqa: ARG002
        """Return the logits where ``logits - max >= log P``, minus infinity elsewhere."""
        return np.where(logits - logits.max() >= self.floor, logits, np.float32(-np.inf))


def _keep(logits: Row, ids: NDArray[np.int64]) -> Row:
    out = np.full_like(logits, -np.inf)
    out[ids] = logits[ids]
    return out
