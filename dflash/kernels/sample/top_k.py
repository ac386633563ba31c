"""Top-k of a row of logits with numba, without sorting the row."""

import numpy as np

from dflash.kernels.cpu import simd
from dflash.kernels.cpu.jit import inline
from dflash.kernels.sample.cpu import block_max
from dflash.kernels.sample.gumbel import BLOCK

_BYTES = 4 * BLOCK
_NOTHING = np.float32(-np.inf)
_HALVINGS = 16  # steps of the bisection for a bound
_FEW = 256  # values above the bound up to which they are sorted


@inline
def top_k(row, ids, values):
    """Find a bound that at least K values reach, then sort the values above it, or use a heap if they are many."""
    maxima = np.empty(len(row) // BLOCK, np.float32)
    for block in range(len(maxima)):
        maxima[block] = block_max(row.ctypes.data + _BYTES * block)
    below = np.nextafter(_bound(maxima, len(ids)), _NOTHING)
    found, its = np.empty(_FEW, np.int32), np.empty(_FEW, np.float32)
    n = _above(row, maxima, below, found, its)
    if n > _FEW:
        _heap(row, maxima, below, ids, values)
    else:
        _sort(found, its, n)
        for i in range(len(ids)):
            ids[i], values[i] = (found[i], its[i]) if i < n else (-1, _NOTHING)


@inline
def _bound(maxima, k):
    """Return a bound that at least `k` block maxima reach, mostly not many more; minus infinity if there are too few."""
    low, high = np.float32(np.inf), _NOTHING
    for value in maxima:
        if value > _NOTHING:
            low, high = min(low, value), max(high, value)
    if _count(maxima, low) < k:
        return _NOTHING
    for _ in range(_HALVINGS):
        middle = low + (high - low) * np.float32(0.5)
        if _count(maxima, middle) >= k:
            low = middle
        else:
            high = middle
    return low


@inline
def _count(values, bound):
    n = 0
    for value in values:
        n += value >= bound
    return n


@inline
def _above(row, maxima, below, ids, values):
    """Gather values above `below`, in order; return their number, or a larger number than fits if there are too many."""
    n, room = 0, len(ids)
    for block in range(len(maxima)):
        if not maxima[block] > below:
            continue
        start = block * BLOCK
        for line in range(start, start + BLOCK, simd.LANES):
            if simd.hmax(simd.load_f32(row.ctypes.data + 4 * line)) > below:
                n = _gather(row, line, line + simd.LANES, below, ids, values, n)
                if n > room:
                    return n
    return _gather(row, len(maxima) * BLOCK, len(row), below, ids, values, n)


@inline
def _gather(row, start, stop, below, ids, values, n):
    for i in range(start, stop):
        if row[i] > below:
            if n < len(ids):
                ids[n], values[n] = i, row[i]
            n += 1
    return n


@inline
def _sort(ids, values, n):
    """Sort by insertion, descending; equals keep their order."""
    for i in range(1, n):
        token, value = ids[i], values[i]
        j = i
        while j > 0 and values[j - 1] < value:
            ids[j], values[j] = ids[j - 1], values[j - 1]
            j -= 1
        ids[j], values[j] = token, value


@inline
def _heap(row, maxima, below, ids, values):
    """Keep the K largest values in a heap, the smallest on top; K values are above `below`, so no initial entry remains."""
    n, k = len(row), len(ids)
    values[:], ids[:] = below, n
    for block in range(len(maxima)):
        if maxima[block] > values[0]:
            _offer(row, block * BLOCK, block * BLOCK + BLOCK, values, ids)
    _offer(row, len(maxima) * BLOCK, n, values, ids)
    for end in range(k - 1, 0, -1):
        values[0], values[end] = values[end], values[0]
        ids[0], ids[end] = ids[end], ids[0]
        _sift(values, ids, end)
    for i in range(k):
        if values[i] == _NOTHING:
            ids[i] = -1


@inline
def _worse(values, ids, a, b):
    return values[a] < values[b] or (values[a] == values[b] and ids[a] > ids[b])


@inline
def _sift(values, ids, n):
    """Move the root of a heap of `n` entries, smallest first, down to its place."""
    at = 0
    while 2 * at + 1 < n:
        child = 2 * at + 1
        if child + 1 < n and _worse(values, ids, child + 1, child):
            child += 1
        if not _worse(values, ids, child, at):
            return
        values[at], values[child] = values[child], values[at]
        ids[at], ids[child] = ids[child], ids[at]
        at = child


@inline
def _offer(row, start, stop, values, ids):
    for i in range(start, stop):
        if row[i] > values[0]:
            values[0], ids[0] = row[i], i
            _sift(values, ids, len(ids))
