"""Rows of logits for tests of samplers: random, with ties, equal, with holes, peaked, masked by the lowest float."""

import numpy as np


def logit_rows(rng, rows, vocab, kind):
    """Return float32 (rows, vocab) of a kind: normal, ties, equal, holes, peaked or masked."""
    x = 3 * rng.standard_normal((rows, vocab)).astype(np.float32)
    if kind == "ties":
        return np.round(x)
    if kind == "equal":
        return np.full_like(x, 1.5)
    if kind == "holes":
        x[:, rng.integers(0, vocab, vocab // 2)] = -np.inf
        x[:, rng.integers(0, vocab, vocab // 4)] = np.nan
    if kind == "peaked":
        x[:, rng.integers(0, vocab, 3)] += 25
    if kind == "masked":
        x[:, rng.random(vocab) < 0.9] = np.finfo(np.float32).min
    return x
