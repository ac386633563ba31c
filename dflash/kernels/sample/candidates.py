"""Candidate tokens from rows of draft logits, with numba."""

import numpy as np
from numba import prange

from dflash.kernels.cpu.jit import inline, kernel
from dflash.kernels.sample.cpu import gumbel, log_sum_exp
from dflash.kernels.sample.top_k import top_k

POOL = 64
"""Largest number of candidates of a row. In sampled rows, noise is added to this many of the largest logits."""

_NOTHING = np.float32(-np.inf)


@kernel
def candidates(logits, scales, top_ks, shares, floors, seeds, positions, targets, ids, scores):
    """Find the candidates of all rows in parallel; a scale of 0 means greedy, empty `targets` keep the token ids."""
    for r in prange(len(logits)):
        ids[r, :] = -1
        scores[r, :] = _NOTHING
        if scales[r] > 0:
            params = scales[r], top_ks[r], shares[r], floors[r]
            _drawn(logits[r], params, seeds[r], positions[r], targets, ids[r], scores[r])
        else:
            _likeliest(logits[r], targets, ids[r], scores[r])


@inline
def _likeliest(row, targets, ids, scores):
    """Take the largest logits of a greedy row; scores are log-probabilities over the whole row."""
    n = min(len(ids), len(row))
    top_k(row, ids[:n], scores[:n])
    _rename(ids[:n], targets)
    total = log_sum_exp(row, 1.0)
    for i in range(n):
        if ids[i] >= 0:
            scores[i] = scores[i] - total


@inline
def _drawn(row, params, seed, position, targets, ids, scores):
    """Take the largest scaled logits with noise of a sampled row; scores are normalised over its reduced pool."""
    n = min(POOL, len(row))
    scale, keep, share, floor = params
    pool, lifted = np.empty(n, np.int32), np.empty(n, np.float32)
    top_k(row, pool, lifted)
    n = _cut(pool, lifted, np.float32(scale), keep, share, np.float32(floor))
    _rename(pool[:n], targets)
    noise, order = np.empty(n, np.float32), np.empty(n, np.int32)
    gumbel(seed, position, pool[:n], noise)
    for i in range(n):
        lifted[i] += noise[i]
    wanted = min(n, len(ids))
    if wanted == 0:
        return
    top_k(lifted[:n], order[:wanted], scores[:wanted])
    highest, total = np.float64(scores[0]), 0.0
    for i in range(n):
        total += np.exp(lifted[i] - highest)
    for i in range(wanted):
        ids[i] = pool[order[i]]
        scores[i] = scores[i] - (highest + np.log(total))


@inline
def _rename(ids, targets):
    if len(targets) > 0:
        for i in range(len(ids)):
            if ids[i] >= 0:
                ids[i] = targets[ids[i]]


@inline
def _cut(pool, values, scale, keep, share, floor):
    """Count the tokens of a descending pool that pass top-k, top-p and the floor; `values` are scaled, the largest to 0."""
    n = min(keep, len(pool)) if keep > 0 else len(pool)
    highest, found = values[0], 0
    while found < n and pool[found] >= 0:
        values[found] = (values[found] - highest) * scale
        found += 1
    total, mass = 0.0, 0.0
    for i in range(found):
        total += np.exp(np.float64(values[i]))
    for i in range(found):
        if values[i] < floor or (share < 1 and i > 0 and mass >= share * total):
            return i
        mass += np.exp(np.float64(values[i]))
    return found
