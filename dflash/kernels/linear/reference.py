"""Definition in float64 NumPy: unpack and multiply."""

import numpy as np

from dflash.kernels.gelu.reference import gelu as gelu_of


def rounded(x):
    """Return tokens as products of whole numbers on a CPU read them: multiples of a 32767th of 256 values' largest."""
    width = x.shape[-1]
    padded = np.pad(np.asarray(x, np.float32), ((0, 0),) * (x.ndim - 1) + ((0, -width % 256),))
    blocks = padded.reshape(*x.shape[:-1], -1, 256)
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(32767)
    whole = np.rint(blocks * (np.float32(1) / scale))
    return (whole * scale.astype(np.float64)).reshape(padded.shape)[..., :width]


def linear(x, weights, outs, *, add=False):
    """Compute ``out = x @ W.T``, or ``out += x @ W.T``."""
    for weight, out in zip(weights, outs, strict=True):
        y = x.astype(np.float64) @ weight.unpacked().astype(np.float64).T
        out[:] = out + y if add else y


def gated_linear(x, gate, up, out, *, gelu=False):
    """Compute ``out = silu(x @ gate.T) * (x @ up.T)``, or with GELU."""
    g, u = (x.astype(np.float64) @ w.unpacked().astype(np.float64).T for w in (gate, up))
    out[:] = (gelu_of(g) if gelu else g / (1 + np.exp(-g))) * u


def cases():
    """Yield names, rows of each weight, width, tokens."""
    yield "one row", (1,), 32, 1
    yield "three rows, three tokens", (3,), 256, 3
    yield "a tile", (16,), 512, 4
    yield "one past a tile", (17,), 256, 5
    yield "several weights", (40, 7, 64, 12), 512, 1
    yield "several weights, 16 tokens", (40, 7, 64, 12), 512, 16
    yield "odd everything", (101, 33), 768, 23
    yield "wide", (24,), 17408, 2
    yield "prefill", (96, 48), 1536, 130
