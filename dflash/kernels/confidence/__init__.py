"""How likely a DSpark draft takes each of its guesses to hold."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def confidence(hidden: Floats, codes: Floats, weight: Floats, bias: float) -> Floats:
    """Confidences of some rows.

    Parameters
    ----------
    hidden : float32 (R, D)
        After the last norm.
    codes : float32 (R, K)
        Of the token before each row.
    weight : float32 (D + K,)
    bias : float

    Returns
    -------
    float32 (R,)
        0 to 1; a row has the same bits in every batch.

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
    """How many positions of a text there are until the product of their confidences falls below `least`."""
    return int(np.count_nonzero(np.cumprod(confidences) >= least))
