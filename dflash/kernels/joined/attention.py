"""Rotation and attention in one call."""

from numba import get_num_threads

from dflash.kernels.attention.cpu import attend_rows
from dflash.kernels.cpu.jit import inline
from dflash.kernels.rope.cpu import rotate_rows


@inline
def rotate_and_attend(
    row_starts, parent, depth, sequence, length, pages,
    query, key, value, q_norm, k_norm, cos, sin, eps, q, k, v, gate, out,
):  # fmt: skip
    """Run the kernels of `dflash.kernels.rope.rotate` and of `dflash.kernels.attention.attend`; nothing is checked."""
    rotate_rows(query, key, value, q_norm, k_norm, cos, sin, row_starts, sequence, length, pages, eps, q, k, v)
    attend_rows(q, k, v, row_starts, parent, depth, length, pages, gate, out, get_num_threads(), 0)
