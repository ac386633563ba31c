"""Hash tables of n-grams with numba: an entry is the end of an occurrence; the tokens there are compared on look-up.

The hash of an n-gram is ``keys[0] + sum(keys[i] * token[-i])`` modulo 2**64, of which the upper 32 bits are used. With
random keys, two n-grams collide only by chance, so an input that collides can't be crafted without knowing the keys.

References
----------
Lemire, Kaser 2014, Strongly universal string hashing is fast (their "multilinear"), arXiv 1202.4961.
"""

import numpy as np

from dflash.kernels.cpu.jit import inline


@inline
def _find(text, last, length, state, tables, row):
    """Return the place in a table for the n-gram that ends at `last`: that of an equal n-gram, or an empty one."""
    mask = np.uint64(tables.shape[1] - 1)
    place = np.uint64(state >> 32) & mask
    while tables[row, place] >= 0:
        other, i = np.int64(tables[row, place]), 0
        while i < length and text[np.uint64(other - i)] == text[np.uint64(last - i)]:
            i += 1
        if i == length:
            break
        place = (place + np.uint64(1)) & mask
    return place


@inline
def fill(text, first, stop, shortest, tables, keys):
    """Enter the n-grams that end at tokens `first` to ``stop - 1``, in this order, into the tables of their lengths."""
    for last in range(first, stop):
        state = keys[0]
        for length in range(1, min(shortest + len(tables) - 1, last + 1) + 1):
            state += keys[length] * np.int64(text[last + 1 - length])
            if length >= shortest:
                row = np.uint64(length - shortest)
                tables[row, _find(text, last, length, state, tables, row)] = last


@inline
def match(text, n, shortest, tables, keys):
    """Compute `Index.match` for the first `n` tokens; the tables hold the n-grams that end before the last of them."""
    best, follower = 0, n
    state = keys[0]
    for length in range(1, min(shortest + len(tables), n)):
        state += keys[length] * np.int64(text[n - length])
        if length >= shortest:
            row = np.uint64(length - shortest)
            end = tables[row, _find(text, n - 1, length, state, tables, row)]
            if end < 0:
                break
            best, follower = length, end + 1
    return best, follower
