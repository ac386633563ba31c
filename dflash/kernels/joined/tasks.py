"""The tasks of each kind of stage, which are those of the separate ops."""

import numpy as np

from dflash.kernels.conv.cpu import CHANNELS, convolve
from dflash.kernels.cpu.jit import inline
from dflash.kernels.joined import table
from dflash.kernels.joined.arrays import floats
from dflash.kernels.linear.cpu import count_tasks
from dflash.kernels.linear.tiles import call_unpack
from dflash.kernels.norm.cpu import gated_norm_row, norm_row
from dflash.kernels.rope.cpu import angles_of_row

_HEADS = 8  # heads of a task of a gated norm


@inline
def n_tasks(stage, plans, n, n_sequences):
    """Return the number of tasks of a stage for `n` rows."""
    kind = stage[table.KIND]
    if kind == table.MULTIPLY:
        return count_tasks(plans[stage[table.FIRST] : stage[table.STOP]])
    if kind in (table.EMBED, table.ANGLES, table.NORM, table.ROTATE):
        return n
    if kind == table.GATED_NORM:
        return (n * stage[table.HEADS] + _HEADS - 1) // _HEADS
    if kind == table.CONV:
        return (stage[table.WIDTH] + CHANNELS - 1) // CHANNELS * n_sequences
    if kind == table.ATTEND:
        return stage[table.KV_HEADS]
    return stage[table.VALUES] // stage[table.SIZE] * stage[table.VALUE_HEADS] * n_sequences


@inline
def embed(stage, row, tokens):
    """Look up one token."""
    source = stage[table.X] + np.int64(tokens[row]) * stage[table.ROW_BYTES]
    call_unpack(stage[table.UNPACK], source, 0, stage[table.STEPS], stage[table.OUT] + 4 * stage[table.WIDTH] * row, 0)


@inline
def angles(stage, row, n, positions):
    """Compute the rotary tables of one row."""
    width = stage[table.WIDTH]
    cos, sin = floats(stage[table.OUT], (n, width)), floats(stage[table.SIN], (n, width))
    angles_of_row(positions.reshape((1, n)), floats(stage[table.X], (width,)), 0, 0, cos, sin, row)


@inline
def norm(stage, row, eps):
    """Norm one row."""
    at = 4 * stage[table.WIDTH] * row
    norm_row(stage[table.X] + at, stage[table.WEIGHT], stage[table.WIDTH], eps, stage[table.OUT] + at)


@inline
def gated_norm(stage, task, eps, n):
    """Norm some heads of all rows."""
    width, weight = stage[table.WIDTH], stage[table.WEIGHT]
    for head in range(task * _HEADS, min((task + 1) * _HEADS, n * stage[table.HEADS])):
        at = 4 * width * head
        gated_norm_row(stage[table.X] + at, stage[table.GATE] + at, weight, width, eps, stage[table.OUT] + at)


@inline
def conv(stage, task, n, row_starts, parent, slot, prefill, accepted, n_accepted, buffer):
    """Convolve some channels of one sequence."""
    n_sequences, width, taps, slots = slot.shape[0], stage[table.WIDTH], stage[table.N_TAPS], stage[table.SLOTS]
    pending = stage[table.CONV_PENDING]
    s, start = task % n_sequences, task // n_sequences * CHANNELS
    convolve(
        s, start, min(start + CHANNELS, width), floats(stage[table.X], (n, width)), floats(stage[table.TAPS], (taps, width)),
        row_starts, parent, slot, prefill, accepted, n_accepted, buffer,
        floats(stage[table.TAIL], (slots, taps - 1, width)), floats(stage[table.INPUTS], (2, slots, pending, width)),
        floats(stage[table.OUT], (n, width)),
    )  # fmt: skip
