"""Definition in float64 NumPy."""

import numpy as np


def soft_cap(x, cap):
    """Return ``cap * tanh(x / cap)`` in float64."""
    x = np.asarray(x, np.float64)
    return cap * np.tanh(x / cap)


def cases():
    """Yield names, rows, values of a row, cap."""
    for rows, width, cap in ((1, 1, 30.0), (3, 203, 3.0), (16, 4099, 15.0), (64, 1024, 0.5)):
        yield f"{rows}x{width} to {cap:g}", rows, width, cap
