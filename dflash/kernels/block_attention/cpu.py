"""Attention of blocks in numba; a task is a KV head of one sequence, with all queries that read it.

Places run from the newest position back, and queries from the last row of the block to the first. A window ends later for a
later row, so each query sees a prefix of the places, no shorter than the query before it, as `read_page` requires.
"""

import numpy as np
from numba import prange

from dflash.kernels.attention.page import clear, finish, gather, merge, read_page
from dflash.kernels.cpu.jit import inline, kernel
from dflash.kernels.ragged import PAGE
from dflash.kernels.rope.cpu import write_row

_SERIAL = 1 << 18
"""Multiplications below which one thread is faster than waking the others."""


def block_attend(q, k, v, ring_k, ring_v, blocks, *, window, causal, out):
    """See the package."""
    own = (1, *k.shape)
    _attend(q, k.reshape(own), v.reshape(own), ring_k, ring_v, *blocks, int(window), bool(causal), out)


def append(k, v, ring_k, ring_v, *, slots, positions):
    """See the package."""
    _append(k, v, ring_k, ring_v, slots, positions)


@inline
def _read(k, v, places, head, width, queries, counts, first, last, scores, states, records):
    """Merge places into the states of queries first .. last - 1."""
    size = 4 * (width + 32)
    read_page(k, v, places.ctypes.data, head, width, queries, counts, first, last, scores, records)
    for j in range(first, last):
        merge(states + size * j, records + size * j, width)


@inline
def _read_ring(ring_k, ring_v, slot, begin, length, window, rows, head, group, queries, scores, states, records):
    """Merge the context in the ring into the states."""
    capacity, width = ring_k.shape[1], ring_k.shape[3]
    oldest = max(begin, length - capacity)
    places, counts = np.empty(PAGE, np.int64), np.empty(rows * group, np.int64)
    for before in range(0, length - oldest, PAGE):
        for i in range(PAGE):
            places[i] = slot * capacity + max(length - 1 - before - i, 0) % capacity
        first = 0
        for j in range(rows * group):
            position = length + rows - 1 - j // group
            start = max(oldest, position - window + 1) if window > 0 else oldest
            counts[j] = min(PAGE, length - start - before)
            first += counts[j] <= 0
        if first < rows * group:
            _read(ring_k, ring_v, places, head, width, queries, counts, first, rows * group, scores, states, records)


@inline
def _read_block(k, v, start, window, causal, rows, head, group, queries, scores, states, records):
    """Merge the rows of the block into the states, for all queries at a time that see the same rows."""
    width = k.shape[3]
    places, counts = np.full(PAGE, start, np.int64), np.empty(rows * group, np.int64)
    j = 0
    while j < rows:
        row = rows - 1 - j
        reach = window if window > 0 else rows
        low, high = max(0, row - reach + 1), row + 1 if causal else min(rows, row + reach)
        last = j + 1
        if not causal and reach >= rows:
            last = rows
        for i in range(high - low):
            places[i] = start + low + i
        counts[j * group : last * group] = high - low
        first, end = j * group, last * group
        _read(k, v, places, head, width, queries, counts, first, end, scores, states, records)
        j = last


@inline
def _head(q, k, v, ring_k, ring_v, start, rows, slot, begin, length, window, causal, head, scratch, out):
    """Compute all queries of a sequence that read one KV head."""
    heads, width = q.shape[1], q.shape[2]
    group = heads // k.shape[2]
    n = rows * group
    queries = scratch.ctypes.data
    scores = queries + 4 * n * width
    states = scores + 4 * n * PAGE
    records = states + 4 * n * (width + 32)
    gather(q, start + rows - 1, -1, head * group, group, n, queries)  # the last row first
    for j in range(n):
        clear(states + 4 * (width + 32) * j, width)
    _read_ring(ring_k, ring_v, slot, begin, length, window, rows, head, group, queries, scores, states, records)
    _read_block(k, v, start, window, causal, rows, head, group, queries, scores, states, records)
    for j in range(n):
        at = (start + rows - 1 - j // group) * heads + head * group + j % group
        finish(states + 4 * (width + 32) * j, width, 0, out.ctypes.data + 4 * width * at)


@inline
def _task(q, k, v, ring_k, ring_v, first, slot, begin, length, window, causal, out, task):
    kv, width = k.shape[2], q.shape[2]
    s, head = task // kv, task % kv
    start, rows = np.int64(first[s]), np.int64(first[s + 1] - first[s])
    here, oldest, newest = np.int64(slot[s]), np.int64(begin[s]), np.int64(length[s])
    # allocated by the caller: numba frees an array after the last use of its name, even if its address is still in use
    scratch = np.empty(rows * (q.shape[1] // kv) * (width + PAGE + 2 * (width + 32)), np.float32)
    _head(q, k, v, ring_k, ring_v, start, rows, here, oldest, newest, window, causal, head, scratch, out)


@kernel
def _attend(q, k, v, ring_k, ring_v, first, slot, begin, length, window, causal, out):
    tasks, products = len(slot) * k.shape[2], 0
    for s in range(len(slot)):
        seen = min(length[s] - begin[s], ring_k.shape[1]) + first[s + 1] - first[s]
        products += np.int64(first[s + 1] - first[s]) * seen * q.shape[1] * q.shape[2]
    if products < _SERIAL:
        for task in range(tasks):
            _task(q, k, v, ring_k, ring_v, first, slot, begin, length, window, causal, out, task)
    else:
        for task in prange(tasks):
            _task(q, k, v, ring_k, ring_v, first, slot, begin, length, window, causal, out, task)


@inline
def _append(k, v, ring_k, ring_v, slots, positions):
    size = k.shape[1] * k.shape[2]
    for row in range(len(k)):
        if slots[row] >= 0:
            place = np.int64(slots[row]) * ring_k.shape[1] + positions[row] % ring_k.shape[1]
            write_row(k.ctypes.data + 4 * size * row, size, ring_k, place)
            write_row(v.ctypes.data + 4 * size * row, size, ring_v, place)
