"""Definition in float64 NumPy."""

import numpy as np


def layer_embeddings(projected, token_part, weight, eps, *, out):
    """Compute ``out = (rms(projected) * weight + token_part) / sqrt(2)``, with the norm over the P elements of a layer."""
    rows = projected.astype(np.float64).reshape(len(projected), -1, weight.size)
    normed = rows / np.sqrt(np.mean(rows**2, axis=-1, keepdims=True) + eps) * weight
    out[:] = (normed.reshape(projected.shape) + token_part) * 2**-0.5


def cases():
    """Yield names, rows, layers, elements of a layer."""
    yield "one layer", 1, 1, 16
    yield "odd rows", 3, 5, 48
    yield "large layers", 2, 3, 256
