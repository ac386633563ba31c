"""The convolution of blocks in numba; a task is a row."""

from numba import prange

from dflash.kernels.cpu.jit import inline, kernel

_SERIAL = 1 << 16
"""Elements below which one thread is faster than waking the others."""


def block_conv(x, change, base, first, *, side, out, add=False):
    """See the package."""
    run = _serial if x.size < _SERIAL else _parallel
    run(x, change, base, first, side, out, add)


@inline
def _row(x, change, base, side, out, add, row, above):
    """Compute one row, which follows `above` rows of its block."""
    _, taps, width = base.shape
    groups = change.shape[1] // (2 * taps)
    size = width // groups
    for group in range(groups):
        start, end = group * size, (group + 1) * size
        for tap in range(min(taps, above + 1)):
            lift = change[row, (side * taps + tap) * groups + group]
            weights, source, target = base[side, tap], x[row - tap], out[row]
            if tap == 0 and not add:
                for c in range(start, end):
                    target[c] = (weights[c] + lift) * source[c]
            else:
                for c in range(start, end):
                    target[c] += (weights[c] + lift) * source[c]


@inline
def _block(x, change, base, first, side, out, add, s):
    for row in range(first[s], first[s + 1]):
        _row(x, change, base, side, out, add, row, row - first[s])


@inline
def _serial(x, change, base, first, side, out, add):
    for s in range(len(first) - 1):
        _block(x, change, base, first, side, out, add, s)


@kernel
def _parallel(x, change, base, first, side, out, add):
    for s in range(len(first) - 1):
        for row in prange(first[s], first[s + 1]):
            _row(x, change, base, side, out, add, row, row - first[s])
