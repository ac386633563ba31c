"""Hash tables of n-grams with numba: an entry is the end of an occurrence; the tokens there are compared on look-up.

The hash of an n-gram is ``keys[0] + sum(keys[i] * token[-i])`` modulo 2**64, of which the upper 32 bits are used. With
random keys, two n-grams collide only by chance, so an input that collides can't be crafted without knowing the keys.

Lemire, Kaser 2014, Strongly universal string hashing is fast (their "multilinear"), arXiv 1202.4961.
"""

import numpy as np

from dflash.kernels.cpu.jit import inline


@inline
def _find(text, query, last, length, state, tables, row):
    """Return the place in a table for the n-gram of `query` that ends at `last`: that of an equal one, or an empty one."""
    mask = np.uint64(tables.shape[1] - 1)
    place = np.uint64(state >> 32) & mask
    while tables[row, place] >= 0:
        other, i = np.int64(tables[row, place]), 0
        while i < length and text[np.uint64(other - i)] == query[np.uint64(last - i)]:
            i += 1
        if i == length:
            break
        place = (place + np.uint64(1)) & mask
    return place


@inline
def fill(text, first, stop, shortest, tables, keys, earlier):
    """Enter the n-grams that end at tokens `first` to ``stop - 1``, in this order, into the tables of their lengths.

    earlier: int32 (lengths, tokens), or (lengths, 0) if not wanted; receives the end of the occurrence before each.
    """
    for last in range(first, stop):
        state = keys[0]
        for length in range(1, min(shortest + len(tables) - 1, last + 1) + 1):
            state += keys[length] * np.int64(text[last + 1 - length])
            if length >= shortest:
                row = np.uint64(length - shortest)
                place = _find(text, text, last, length, state, tables, row)
                if earlier.shape[1]:
                    earlier[row, np.uint64(last)] = tables[row, place]
                tables[row, place] = last


@inline
def match(text, n, shortest, tables, keys):
    """Compute `Index.match` for the first `n` tokens; the tables hold the n-grams that end before the last of them."""
    best, follower = 0, n
    state = keys[0]
    for length in range(1, min(shortest + len(tables), n)):
        state += keys[length] * np.int64(text[n - length])
        if length >= shortest:
            row = np.uint64(length - shortest)
            end = tables[row, _find(text, text, n - 1, length, state, tables, row)]
            if end < 0:
                break
            best, follower = length, end + 1
    return best, follower


@inline
def occurrences(text, n, query, shortest, tables, keys, earlier, ends, lengths):
    """Compute `Index.occurrences` into int64 arrays; return their number."""
    end, best, state = -1, 0, keys[0]
    for length in range(1, min(shortest + len(tables) - 1, len(query)) + 1):
        state += keys[length] * np.int64(query[len(query) - length])
        if length >= shortest:
            row = np.uint64(length - shortest)
            found = np.int64(tables[row, _find(text, query, len(query) - 1, length, state, tables, row)])
            if found < 0:
                break
            end, best = found, length
    count = 0
    while end >= 0 and count < len(ends):
        length = best
        while length < len(query) and length <= end and text[end - length] == query[len(query) - 1 - length]:
            length += 1
        if end + 1 < n:
            ends[count], lengths[count] = end, length
            count += 1
        end = np.int64(earlier[best - shortest, end])
    return count


@inline
def continuations(text, n, ends, weights, depth, tokens, parents, shares):
    """Compute `Index.continuations` into arrays; return the number of nodes."""
    place = np.full(len(ends), -1)  # node of each occurrence, -2 behind its last one
    count, total = 0, weights.sum()
    for step in range(1, depth + 1):
        first = count
        for i in range(len(ends)):
            at = ends[i] + step
            if place[i] == -2 or at >= n or text[at] < 0:
                place[i] = -2
                continue
            node = first
            while node < count and (parents[node] != place[i] or tokens[node] != text[at]):
                node += 1
            if node == len(tokens):
                place[i] = -2
                continue
            if node == count:
                tokens[node], parents[node], shares[node] = text[at], place[i], 0.0
                count += 1
            shares[node] += weights[i] / total
            place[i] = node
        if count == first:
            break
    return count
