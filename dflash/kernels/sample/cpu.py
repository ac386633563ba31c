"""Passes over a row of logits with numba: 64 of them at a time, the rest one by one."""

import numpy as np

from dflash.kernels.cpu import simd
from dflash.kernels.cpu.jit import inline
from dflash.kernels.sample.gumbel import BLOCK, HIGHEST, gumbel_block, gumbel_of, words_of

_LINE = 4 * simd.LANES
_BYTES = 4 * BLOCK
_NOTHING = np.float32(-np.inf)


@inline
def block_max(at):
    """Largest of the 64 float32 at an address; NaN is ignored."""
    low = simd.maximum(simd.load_f32(at), simd.load_f32(at + _LINE))
    high = simd.maximum(simd.load_f32(at + 2 * _LINE), simd.load_f32(at + 3 * _LINE))
    return simd.hmax(simd.maximum(low, high))


@inline
def largest(row):
    """Largest of a row, minus infinity if there is nothing but NaN."""
    at, n = row.ctypes.data, len(row)
    best = _NOTHING
    for block in range(n // BLOCK):
        best = max(best, block_max(at + _BYTES * block))
    for i in range(n // BLOCK * BLOCK, n):
        if row[i] > best:
            best = row[i]
    return best


@inline
def argmax_row(row):
    """Lowest id of the largest logit, or -1."""
    at, n = row.ctypes.data, len(row)
    best, where = _NOTHING, -1
    for block in range(n // BLOCK):
        top = block_max(at + _BYTES * block)
        if top > best:
            best, where = top, block
    found = -1
    if where >= 0:
        found = where * BLOCK
        while row[found] != best:
            found += 1
    for i in range(n // BLOCK * BLOCK, n):
        if row[i] > best:
            best, found = row[i], i
    return found


@inline
def argmax(logits, out):
    """Row by row: a row takes less than a launch on all threads."""
    for i in range(logits.shape[0]):
        out[i] = argmax_row(logits[i])


@inline
def argmax_allowed(logits, allowed, out):
    """With a mask."""
    for i in range(logits.shape[0]):
        best, found = _NOTHING, -1
        for token in range(logits.shape[1]):
            if allowed[i, token] and logits[i, token] > best:
                best, found = logits[i, token], token
        out[i] = found


@inline
def sum_exp(row, highest, scale):
    """``sum(exp((row - highest) * scale))``, NaN as minus infinity: two vectors of lanes in turn, then the tail."""
    at, n, scale32 = row.ctypes.data, len(row) // (2 * simd.LANES), np.float32(scale)
    a, b = simd.zeros(), simd.zeros()
    tops, scales, lowest = simd.splat(highest), simd.splat(scale32), simd.splat(_NOTHING)
    for i in range(n):
        line = at + 2 * _LINE * i
        x, y = simd.maximum(simd.load_f32(line), lowest), simd.maximum(simd.load_f32(line + _LINE), lowest)
        a = simd.add(a, simd.exp(simd.mul(simd.sub(x, tops), scales)))
        b = simd.add(b, simd.exp(simd.mul(simd.sub(y, tops), scales)))
    total = simd.hsum(simd.add(a, b))
    for i in range(2 * simd.LANES * n, len(row)):
        if not np.isnan(row[i]):
            total += simd.hmax(simd.exp(simd.splat((row[i] - highest) * scale32)))
    return total


@inline
def log_sum_exp(row, scale):
    """In float64 from the sum on."""
    highest = largest(row)
    return np.float64(highest) * np.float32(scale) + np.log(np.float64(sum_exp(row, highest, scale)))


@inline
def likely(row, scale, floor, ids, scaled):
    """Blocks below the floor are passed over."""
    n, found, scale32, floor32 = len(row), 0, np.float32(scale), np.float32(floor)
    highest = largest(row)
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        whole = stop - start == BLOCK
        if whole and not (block_max(row.ctypes.data + 4 * start) - highest) * scale32 >= floor32:
            continue
        for i in range(start, stop):
            lifted = (row[i] - highest) * scale32
            if lifted >= floor32:
                ids[found], scaled[found] = i, lifted
                found += 1
    return found, np.float64(sum_exp(row, highest, scale32))


@inline
def gumbel(seed, position, ids, out):
    """16 tokens at a time."""
    n = len(ids)
    some, noise = np.zeros(simd.LANES, np.int32), np.empty(simd.LANES, np.float32)
    for start in range(0, n, simd.LANES):
        rest = min(simd.LANES, n - start)
        some[:rest] = ids[start : start + rest]
        words = words_of(seed, position, simd.load_i32(some.ctypes.data))
        simd.store_f32(noise.ctypes.data, gumbel_of(words))
        out[start : start + rest] = noise[:rest]


@inline
def sample(row, scale, seed, position, floor):
    """Blocks that can't win with the highest noise are passed over."""
    n, highest, scale32 = len(row), largest(row), np.float32(scale)
    tops, scales, floors = simd.splat(highest), simd.splat(scale32), simd.splat(np.float32(floor))
    nothing = simd.splat(_NOTHING)
    last, keys = np.full(BLOCK, _NOTHING), np.empty(BLOCK, np.float32)
    last[: n % BLOCK] = row[n // BLOCK * BLOCK :]
    best, found = _NOTHING, -1
    for block in range((n + BLOCK - 1) // BLOCK):
        at = row.ctypes.data + _BYTES * block if (block + 1) * BLOCK <= n else last.ctypes.data
        reach = (block_max(at) - highest) * scale32
        if not reach + np.float32(HIGHEST) > best or reach < np.float32(floor):
            continue
        key = keys.ctypes.data
        gumbel_block(seed, position, block, key)
        for line in range(0, _BYTES, _LINE):
            x = simd.mul(simd.sub(simd.load_f32(at + line), tops), scales)
            lifted = simd.add(x, simd.load_f32(key + line))
            simd.store_f32(key + line, simd.select(simd.less(x, floors), nothing, lifted))
        top = block_max(key)
        if top > best:
            best, found = top, 0
            while keys[found] != best:
                found += 1
            found += block * BLOCK
    return found


@inline
def sample_among(ids, scaled, seed, position, floor):
    """Ties go to the lowest id."""
    noise = np.empty(len(ids), np.float32)
    gumbel(seed, position, ids, noise)
    best, found = _NOTHING, -1
    for i in range(len(ids)):
        if scaled[i] < np.float32(floor):
            continue
        key = scaled[i] + noise[i]
        if key > best or (key == best and ids[i] < found):
            best, found = key, ids[i]
    return found
