"""Conv, delta rule and gated norm in one launch, built of the same pieces as the single ops."""

from numba import prange

from dflash.kernels.conv.cpu import convolve
from dflash.kernels.delta.cpu import advance
from dflash.kernels.norm.cpu import gated_norm_row
from dflash.kernels.numba_jit import inline, kernel


@inline
def _gated_norm_head(start, stop, head, o, z, weight, eps, out):
    """The rows from start to stop of one head."""
    n_heads, n_values = o.shape[1], o.shape[2]
    for row in range(start, stop):
        at = 4 * n_values * (row * n_heads + head)
        gated_norm_row(o.ctypes.data + at, z.ctypes.data + at, weight.ctypes.data, n_values, eps, out.ctypes.data + at)


@kernel
def mixer(
    lanes, x, z, alpha, beta, taps, rate, shift, weight, eps,
    first, parent, slot, whole, kept, n_kept, side, tail, inputs, state, k, u, decay, y, o, out,
):  # fmt: skip
    """A task is a sequence and a key head with its value heads: no channel is touched by two tasks."""
    n_heads, n_values, width = state.shape[1:]
    n_sequences, n_groups = slot.shape[0], k.shape[3]
    keys, values = n_groups * width, 2 * n_groups * width
    for task in prange(n_groups * n_sequences):
        s, group = task % n_sequences, task // n_sequences
        for piece in range(2 + n_heads // n_groups):
            head = group + (piece - 2) * n_groups
            size = width if piece < 2 else n_values
            start = piece * keys + group * width if piece < 2 else values + head * n_values
            convolve(s, start, start + size, x, taps, first, parent, slot, whole, kept, n_kept, side, tail, inputs, y)
            if piece >= 2:
                advance(
                    lanes, s, head, 0, n_values, y, alpha, beta, rate, shift,
                    first, parent, slot, whole, kept, n_kept, side, state, k, u, decay, o,
                )  # fmt: skip
                _gated_norm_head(first[s], first[s + 1], head, o, z, weight, eps, out)
