"""Definitions in float64 NumPy."""

import numpy as np


def rms_norm(x, weight, eps, *, out):
    """Compute ``x / sqrt(mean(x ** 2) + eps) * weight``, with the mean over a row."""
    x = x.astype(np.float64)
    out[:] = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * weight


def gated_rms_norm(x, z, weight, eps, *, out):
    """Compute ``rms_norm(x) * silu(z)``, with the mean over a head."""
    x = x.astype(np.float64)
    gate = z.astype(np.float64).reshape(x.shape)
    normed = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * weight
    out[:] = (normed * gate / (1 + np.exp(-gate))).reshape(out.shape)


def cases():
    """Yield names, rows, width of a row or head."""
    yield "one short row", 1, 5
    yield "one row", 1, 512
    yield "three odd rows", 3, 67
    yield "a head", 2, 16
    yield "two vectors and a bit", 7, 37
    yield "one past a task", 9, 128
    yield "wide", 2, 5120
    yield "prefill", 130, 1024
