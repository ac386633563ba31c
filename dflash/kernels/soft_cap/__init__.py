"""Soft cap of logits."""

import numpy as np
from numpy.typing import NDArray


def soft_cap(x: NDArray[np.float32], cap: float) -> None:
    """Limit values smoothly to a cap, in place.

    Parameters
    ----------
    x : float32 (R, V)
        Logits, changed in place.
    cap : float
        Bound of the absolute values; above 0.

    Notes
    -----
    ``x = cap * tanh(x / cap)``. Moves 8 bytes a value.
    """
    x /= np.float32(cap)
    np.tanh(x, out=x)
    x *= np.float32(cap)
