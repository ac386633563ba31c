"""Top-p with numba, without sorting the vocabulary."""

import numpy as np

from dflash.kernels.cpu.jit import inline

_BINS = 1024  # bins of equal width in each pass
_FEW = 32  # tokens that are sorted by insertion instead


@inline
def nucleus(ids, scaled, share, total):
    """Select tokens by histograms: bins above the one that crosses the share are taken, that bin is split again."""
    weights = np.exp(scaled.astype(np.float64))
    wanted = share * (total if total > 0 else weights.sum())
    taken, stop, mass = 0, len(ids), 0.0
    while stop - taken > _FEW:
        high, low = scaled[taken:stop].max(), scaled[taken:stop].min()
        if not high > low:
            break
        factor = np.float32(_BINS) / (high - low)
        last, mass = _crossing(scaled[taken:stop], weights[taken:stop], high, factor, wanted, mass)
        taken, stop = _split(ids, scaled, weights, taken, stop, high, factor, last)
    _sort(ids, scaled, weights, taken, stop)
    while taken < stop:
        mass += weights[taken]
        taken += 1
        if mass >= wanted:
            break
    return taken


@inline
def _bin(value, high, factor):
    return min(int((high - value) * factor), _BINS - 1)


@inline
def _crossing(scaled, weights, high, factor, wanted, mass):
    """Return the bin where the sum reaches `wanted`, or the last one, and the sum of the bins above."""
    bins = np.zeros(_BINS)
    for i in range(len(scaled)):
        bins[_bin(scaled[i], high, factor)] += weights[i]
    for last in range(_BINS - 1):
        if mass + bins[last] >= wanted and bins[last] > 0:
            return last, mass
        mass += bins[last]
    return _BINS - 1, mass


@inline
def _split(ids, scaled, weights, taken, stop, high, factor, last):
    """Move tokens above bin `last` to the front, followed by those of the bin; return the range of the latter."""
    n = 0
    inside = np.empty(stop - taken, np.int64)
    kept_ids, kept_scaled, kept_weights = ids[taken:stop].copy(), scaled[taken:stop].copy(), weights[taken:stop].copy()
    for i in range(len(kept_ids)):
        where = _bin(kept_scaled[i], high, factor)
        if where < last:
            ids[taken], scaled[taken], weights[taken] = kept_ids[i], kept_scaled[i], kept_weights[i]
            taken += 1
        elif where == last:
            inside[n] = i
            n += 1
    for j in range(n):
        i = inside[j]
        ids[taken + j], scaled[taken + j], weights[taken + j] = kept_ids[i], kept_scaled[i], kept_weights[i]
    return taken, taken + n


@inline
def _sort(ids, scaled, weights, start, stop):
    """Sort by insertion: most probable first, lower ids first among equals. The tokens are few, or in order already."""
    for i in range(start + 1, stop):
        token, value, weight = ids[i], scaled[i], weights[i]
        j = i
        while j > start and (scaled[j - 1] < value or (scaled[j - 1] == value and ids[j - 1] > token)):
            ids[j], scaled[j], weights[j] = ids[j - 1], scaled[j - 1], weights[j - 1]
            j -= 1
        ids[j], scaled[j], weights[j] = token, value, weight
