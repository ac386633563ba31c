"""Draft trees by best-first search with a heap, in numba."""

import numpy as np

from dflash.kernels.cpu.jit import inline


@inline
def grow(ids, table, tokens, parents):
    """Build a tree; `table` is (D, K, K), or (D, 1, K) if scores do not depend on the previous candidate."""
    depth, above, width = table.shape
    order = np.empty((depth, above, width), np.int32)
    n_ranks = np.full((depth, above), -1, np.int32)
    room = len(tokens)
    weights = np.empty(room + 1)  # the last entry belongs to the root
    weights[room] = 0.0
    picks, levels = np.zeros(room, np.int32), np.empty(room, np.int32)
    keys, entries = np.empty(2 * room + depth), np.empty((2 * room + depth, 3), np.int32)
    n, size, found, pick = 0, 0, 0, 0

    while n < min(depth, room):
        row = pick if above > 1 else 0
        _rank(ids, table, order, n_ranks, n, row)
        if n_ranks[n, row] == 0:
            break
        pick = order[n, row, 0]
        weights[n] = weights[n - 1 if n else room] + table[n, row, pick]
        tokens[n], parents[n], picks[n], levels[n] = ids[n, pick], n - 1, pick, n
        n += 1
    for node in range(n):
        row = picks[node - 1] if above > 1 and node else 0
        if n_ranks[node, row] > 1:
            weight = weights[node - 1 if node else room] + table[node, row, order[node, row, 1]]
            size, found = _push(keys, entries, size, found, weight, node - 1, 1)

    while n < room and size > 0:
        weight, parent, rank = keys[0], entries[0, 0], entries[0, 1]
        size = _pop(keys, entries, size)
        level = levels[parent] + 1 if parent >= 0 else 0
        row = picks[parent] if above > 1 and parent >= 0 else 0
        pick = order[level, row, rank]
        weights[n] = weight
        tokens[n], parents[n], picks[n], levels[n] = ids[level, pick], parent, pick, level
        if rank + 1 < n_ranks[level, row]:
            weight = weights[parent if parent >= 0 else room] + table[level, row, order[level, row, rank + 1]]
            size, found = _push(keys, entries, size, found, weight, parent, rank + 1)
        if level + 1 < depth:
            row = pick if above > 1 else 0
            _rank(ids, table, order, n_ranks, level + 1, row)
            if n_ranks[level + 1, row] > 0:
                size, found = _push(
                    keys, entries, size, found, weights[n] + table[level + 1, row, order[level + 1, row, 0]], n, 0
                )
        n += 1
    return n


@inline
def _rank(ids, table, order, n_ranks, t, row):
    """Sort the candidates that may follow, best first, unless they are sorted already."""
    if n_ranks[t, row] >= 0:
        return
    scores, ranks, n = table[t, row], order[t, row], 0
    for j in range(len(scores)):
        if ids[t, j] < 0 or not scores[j] > -np.inf:
            continue
        at = n
        while at > 0 and scores[ranks[at - 1]] < scores[j]:
            ranks[at] = ranks[at - 1]
            at -= 1
        ranks[at] = j
        n += 1
    n_ranks[t, row] = n


@inline
def _before(keys, entries, a, b):
    return keys[a] > keys[b] or (keys[a] == keys[b] and entries[a, 2] < entries[b, 2])


@inline
def _swap(keys, entries, a, b):
    keys[a], keys[b] = keys[b], keys[a]
    for i in range(3):
        entries[a, i], entries[b, i] = entries[b, i], entries[a, i]


@inline
def _push(keys, entries, size, found, weight, parent, rank):
    """Push a node to the heap; the largest weight is on top, among equals the node found first."""
    keys[size] = weight
    entries[size, 0], entries[size, 1], entries[size, 2] = parent, rank, found
    at = size
    while at > 0 and _before(keys, entries, at, (at - 1) // 2):
        _swap(keys, entries, at, (at - 1) // 2)
        at = (at - 1) // 2
    return size + 1, found + 1


@inline
def _pop(keys, entries, size):
    """Remove the top of the heap; return the new size."""
    size -= 1
    _swap(keys, entries, 0, size)
    at = 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _before(keys, entries, child + 1, child):
            child += 1
        if not _before(keys, entries, child, at):
            break
        _swap(keys, entries, at, child)
        at = child
    return size
