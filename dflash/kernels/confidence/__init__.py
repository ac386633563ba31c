"""Confidence head of a DSpark draft model: predicted probability that each draft token is accepted."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def confidence(hidden: Floats, codes: Floats, weight: Floats, bias: float) -> Floats:
    """Return the confidence of each row.

    Parameters
    ----------
    hidden : float32 (R, D)
        Hidden states after the last norm.
    codes : float32 (R, K)
        Code of the token before each row.
    weight : float32 (D + K,)
        Weight of the head.
    bias : float
        Bias of the head.

    Returns
    -------
    float32 (R,)
        Confidences, 0 to 1; a row has the same bits in every batch.

    Notes
    -----
    ``sigmoid(weight . [hidden; code] + bias)``.

    References
    ----------
    DSpark, arXiv 2607.05147.
    """
    both = np.concatenate([hidden, codes], axis=1)
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-((both * weight).sum(axis=1) + np.float32(bias))))


def reach(confidences: Floats, least: float) -> int:
    """Return the number of leading positions for which the product of confidences is at least `least`."""
    return int(np.count_nonzero(np.cumprod(confidences) >= least))
