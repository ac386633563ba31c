"""Definition in float64 NumPy."""

import numpy as np


def gelu(x):
    """Return ``x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2``."""
    x = np.asarray(x, np.float64)
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


def gelu_gate(gate, values, *, out):
    """Compute ``out = gelu(gate) * values``."""
    out[:] = gelu(gate) * values


def cases():
    """Yield names, rows, elements of a row."""
    yield "one line", 1, 16
    yield "odd rows", 3, 48
    yield "a layer's part", 7, 256
