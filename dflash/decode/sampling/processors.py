"""What turns a model's logits into the law that a token is drawn from: the definitions, one row at a time.

A rule is called with a row of logits and the history above it and returns logits. Processors of a session, whatever they
are, have the same form. `Sampler` folds a list of these into fewer passes.
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dflash.decode.sampling.history import History
from dflash.kernels.sample import Offsets

Row = NDArray[np.float32]


class LogitsProcessor(Protocol):
    """Changes the logits of one node; the same logits and history must always give the same result."""

    def __call__(self, logits: Row, history: History) -> Row:
        """Return float32 (V,), minus infinity for a token that may not come; `logits` may be written to."""
        ...


@dataclass(frozen=True, slots=True)
class Penalties:
    """Make tokens that occurred less likely, as vLLM and OpenAI do.

    Parameters
    ----------
    repetition : float
        For a token of prompt or output: a positive logit is divided by it, another multiplied (Keskar et al. 2019, arXiv
        1909.05858).
    presence : float
        Taken off the logit of a produced token.
    frequency : float
        Taken off each time that the token was produced.
    """

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0

    def __call__(self, logits: Row, history: History) -> Row:
        """Needs `History.counts`."""
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

    Parameters
    ----------
    bias : tuple of (int, float)
        Token ids and what is added to their logits, as float32.

    Attributes
    ----------
    offsets : Offsets
        The same as two arrays, made once, so that a node of a draft costs one vector operation.
    """

    bias: tuple[tuple[int, float], ...]
    offsets: Offsets = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", Offsets.of(self.bias))

    def __call__(self, logits: Row, history: History) -> Row:  # noqa: ARG002
        """Ids are below V: the engine has checked them."""
        self.offsets.add_to(logits)
        return logits


@dataclass(frozen=True, slots=True)
class TopK:
    """Keep the K likeliest tokens, lower ids first among equals. Any temperature keeps the same ones."""

    k: int

    def __call__(self, logits: Row, history: History) -> Row:  # noqa: ARG002
        """``k >= V`` keeps all."""
        return _keep(logits, np.argsort(-logits, kind="stable")[: self.k])


@dataclass(frozen=True, slots=True)
class Temperature:
    """Divide by a temperature. The largest logit is made 0 first, so that nothing overflows."""

    temperature: float

    @property
    def scale(self) -> np.float32:
        """What logits are multiplied by."""
        return np.float32(1 / self.temperature)

    def __call__(self, logits: Row, history: History) -> Row:  # noqa: ARG002
        """``(logits - max) / T``."""
        return (logits - logits.max()) * self.scale


@dataclass(frozen=True, slots=True)
class TopP:
    """Keep the likeliest tokens until together they have the share P (Holtzman et al. 2019, arXiv 1904.09751)."""

    p: float

    def __call__(self, logits: Row, history: History) -> Row:  # noqa: ARG002
        """The token that reaches P is kept, too."""
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
        """How far a log-probability may lie below the largest."""
        return np.float32(np.log(self.p))

    def __call__(self, logits: Row, history: History) -> Row:  # noqa: ARG002
        """``logits - max >= log P``."""
        return np.where(logits - logits.max() >= self.floor, logits, np.float32(-np.inf))


def _keep(logits: Row, ids: NDArray[np.int64]) -> Row:
    out = np.full_like(logits, -np.inf)
    out[ids] = logits[ids]
    return out
