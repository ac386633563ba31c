"""Definition in float64 NumPy, row by row."""

from itertools import pairwise

import numpy as np


def block_conv(x, change, base, first, *, side, out, add=False):
    """Compute ``sum of taps * rows``; rows before the block are zero."""
    _, taps, width = base.shape
    change = change.reshape(len(x), 2, taps, -1).astype(np.float64)
    for start, end in pairwise(first):
        for row in range(start, end):
            total = np.zeros(width)
            for tap in range(min(taps, row - start + 1)):
                weights = base[side, tap] + np.repeat(change[row, side, tap], width // change.shape[-1])
                total += weights * x[row - tap]
            out[row] = out[row] + total if add else total


def cases():
    """Yield names, rows of each block, columns, groups, taps."""
    yield "one row", [1], 32, 2, 2
    yield "a block", [16], 64, 4, 2
    yield "odd groups", [7], 45, 3, 2
    yield "four taps, short blocks", [3, 1, 2, 8], 96, 6, 4
    yield "one tap", [4, 4], 32, 1, 1
    yield "an empty block", [2, 0, 5], 48, 48, 3
    yield "many rows", [16] * 5, 512, 32, 2
