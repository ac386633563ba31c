"""Bend numbers below a cap."""

import numpy as np
from numpy.typing import NDArray


def soft_cap(x: NDArray[np.float32], cap: float) -> None:
    """Bend numbers in place, so that none is larger than a cap.

    Parameters
    ----------
    x : float32 (R, V)
        Changed in place.
    cap : float
        Above 0.

    Notes
    -----
    ``x = cap * tanh(x / cap)``. Moves 8 bytes a number.
    """
    x /= np.float32(cap)
    np.tanh(x, out=x)
    x *= np.float32(cap)
