"""Decay and write strength of each head for a token."""

import numpy as np

from dflash.kernels.cpu import simd
from dflash.kernels.cpu.jit import inline

LOG_DECAY, DECAY, BETA = 0, 1, 2
"""Rows of a table of gates: log of the decay, decay, write strength."""

# log1p(t) = 2 artanh(z), z = t / (2 + t): odd powers up to z**15; with z <= 1/3 the error is below 1e-9
_ODD = tuple(np.float32(1.0 / n) for n in (15, 13, 11, 9, 7, 5, 3))


@inline
def softplus(u):
    """Return ``log(1 + exp(u))`` of 16 lanes, exact to a few ulp for tiny results, too."""
    positive = simd.maximum(u, simd.zeros())
    t = simd.exp(simd.sub(u, simd.add(positive, positive)))
    z = simd.div(t, simd.add(t, simd.splat(np.float32(2))))
    square = simd.mul(z, z)
    series = simd.splat(_ODD[0])
    for i in range(1, len(_ODD)):
        series = simd.fma(series, square, simd.splat(_ODD[i]))
    twice = simd.add(z, z)
    return simd.add(positive, simd.fma(simd.mul(series, square), twice, twice))


@inline
def fill(alpha, beta, head, rate, shift, start, n, table):
    """Fill ``table (3, capacity)`` for `n` rows from row `start` on; the capacity is a multiple of 16.

    ``log_decay = rate * softplus(alpha + shift)``, ``decay = exp(log_decay)``, ``beta = sigmoid(beta)``.
    """
    for i in range(n):
        table[DECAY, i] = alpha[start + i, head] + shift
        table[BETA, i] = beta[start + i, head]
    room = 4 * table.shape[1]
    for at in range(0, 4 * n, 4 * simd.LANES):
        line = table.ctypes.data + at
        log_decay = simd.mul(simd.splat(rate), softplus(simd.load_f32(line + DECAY * room)))
        simd.store_f32(line + LOG_DECAY * room, log_decay)
        simd.store_f32(line + DECAY * room, simd.exp(log_decay))
        simd.store_f32(line + BETA * room, simd.sigmoid(simd.load_f32(line + BETA * room)))
