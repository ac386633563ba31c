"""Intervals of ratios by the bootstrap over prompts."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_RESAMPLES = 2000
"""Resamples: the ends of an interval then vary by about a twentieth of its width."""

LEVEL = 0.95

Pairs = Sequence[tuple[float, float]]
"""For each prompt, numerator and denominator summed over its requests."""


def ratio(pairs: Pairs) -> float:
    """Return the sum of numerators over the sum of denominators; 0 without any."""
    above, below = np.sum(np.asarray(pairs, float).reshape(-1, 2), axis=0)
    return float(above / below) if below else 0.0


def resampled(pairs: Pairs, *, stream: int = 0) -> NDArray[np.float64]:
    """Return the ratio of each resample of prompts.

    stream: equal ones draw the same prompts, so that differences are paired; the result depends on nothing else.

    Source: Efron 1979; prompts are drawn, not tokens, since the tokens of a text depend on each other.
    """
    values = np.asarray(pairs, float).reshape(-1, 2)
    n = len(values)
    weights = np.random.default_rng(stream).multinomial(n, np.full(n, 1 / n), size=_RESAMPLES)
    above, below = (weights @ values).T
    return np.divide(above, below, out=np.zeros(_RESAMPLES), where=below > 0)


def interval(samples: NDArray[np.float64]) -> list[float]:
    """Return the ends of the percentile interval at `LEVEL`."""
    return [float(end) for end in np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])]
