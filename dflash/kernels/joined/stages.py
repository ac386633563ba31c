"""The stages of a launch: a table of int64, and the tasks of each kind of stage, which are those of the separate ops.

A row of the table describes a stage: its kind, then addresses of arrays and sizes. All arrays are float32 and contiguous.
"""

import numpy as np
from llvmlite import ir
from numba import carray, types

from dflash.kernels.conv.cpu import CHANNELS, convolve
from dflash.kernels.cpu.jit import inline
from dflash.kernels.cpu.simd import fetch_add
from dflash.kernels.cpu.simd.emit import op
from dflash.kernels.delta.cpu import advance
from dflash.kernels.linear.cpu import count_tasks, take_tasks
from dflash.kernels.linear.tiles import call_unpack
from dflash.kernels.norm.cpu import gated_norm_row, norm_row
from dflash.kernels.ragged import PENDING
from dflash.kernels.rope.cpu import angles_of_row

EMBED, ANGLES, NORM, GATED_NORM, MULTIPLY, CONV, DELTA = range(7)
"""Kinds of stages."""

KIND, X, OUT, WIDTH = range(4)
"""Columns of all stages: the kind, input, output, and the width of a row or of a head."""

ROW_BYTES, STEPS, UNPACK = range(4, 7)
"""Further columns of an embedding: see `dflash.kernels.embed`."""

SIN = 4
"""Further column of a rotary table: the array of sines; the output are the cosines."""

WEIGHT, HEADS, GATE = range(4, 7)
"""Further columns of norms: gain, heads of a row, and the gate of a gated norm."""

FIRST, STOP = 4, 5
"""Further columns of a multiply: its rows in the table of plans."""

TAPS, TAIL, INPUTS, SLOTS, N_TAPS = range(4, 9)
"""Further columns of a convolution: its weight, its memory, the slots of the memory and the rows of the weight."""

ALPHA, BETA, RATE, SHIFT, STATE, K, U, DECAY, DELTA_SLOTS, GROUPS, VALUE_HEADS, VALUES, RUN, SIZE = range(4, 18)
"""Further columns of the delta rule: weights and memory, slots, key heads, value heads, value size, value heads that share
a key head, and value rows of a task."""

COLUMNS = SIZE + 1

MAX_ROWS = 8
"""Most rows of a launch: those of one call of a dot function."""

_HEADS = 8  # heads of a task of a gated norm


@op(types.voidptr, types.int64)
def _pointer(builder, address):
    return builder.inttoptr(address, ir.IntType(8).as_pointer())


@inline
def _array(address, shape):
    """Return the float32 array of a shape at an address."""
    return carray(_pointer(address), shape, np.float32)


@inline
def n_tasks(stage, plans, n, n_sequences):
    """Return the number of tasks of a stage for `n` rows."""
    kind = stage[KIND]
    if kind == MULTIPLY:
        return count_tasks(plans[stage[FIRST] : stage[STOP]])
    if kind in (EMBED, ANGLES, NORM):
        return n
    if kind == GATED_NORM:
        return (n * stage[HEADS] + _HEADS - 1) // _HEADS
    if kind == CONV:
        return (stage[WIDTH] + CHANNELS - 1) // CHANNELS * n_sequences
    return stage[VALUES] // stage[SIZE] * stage[VALUE_HEADS] * n_sequences


@inline
def _embed(stage, row, tokens):
    source = stage[X] + np.int64(tokens[row]) * stage[ROW_BYTES]
    call_unpack(stage[UNPACK], source, 0, stage[STEPS], stage[OUT] + 4 * stage[WIDTH] * row, 0)


@inline
def _angles(stage, row, n, positions):
    width = stage[WIDTH]
    cos, sin = _array(stage[OUT], (n, width)), _array(stage[SIN], (n, width))
    angles_of_row(positions.reshape((1, n)), _array(stage[X], (width,)), 0, 0, cos, sin, row)


@inline
def _norm(stage, row, eps):
    at = 4 * stage[WIDTH] * row
    norm_row(stage[X] + at, stage[WEIGHT], stage[WIDTH], eps, stage[OUT] + at)


@inline
def _gated_norm(stage, task, eps, n):
    for head in range(task * _HEADS, min((task + 1) * _HEADS, n * stage[HEADS])):
        at = 4 * stage[WIDTH] * head
        gated_norm_row(stage[X] + at, stage[GATE] + at, stage[WEIGHT], stage[WIDTH], eps, stage[OUT] + at)


@inline
def _conv(stage, task, n, row_starts, parent, slot, prefill, accepted, n_accepted, buffer):
    n_sequences, width, taps, slots = slot.shape[0], stage[WIDTH], stage[N_TAPS], stage[SLOTS]
    s, start = task % n_sequences, task // n_sequences * CHANNELS
    convolve(
        s, start, min(start + CHANNELS, width), _array(stage[X], (n, width)), _array(stage[TAPS], (taps, width)),
        row_starts, parent, slot, prefill, accepted, n_accepted, buffer,
        _array(stage[TAIL], (slots, taps - 1, width)), _array(stage[INPUTS], (2, slots, PENDING, width)),
        _array(stage[OUT], (n, width)),
    )  # fmt: skip


@inline
def _delta(stage, task, lanes, n, row_starts, parent, slot, prefill, accepted, n_accepted, buffer):
    n_sequences, width, slots, size = slot.shape[0], stage[WIDTH], stage[DELTA_SLOTS], stage[SIZE]
    groups, heads, values = stage[GROUPS], stage[VALUE_HEADS], stage[VALUES]
    s, part = task % n_sequences, task // n_sequences
    head, v = part % heads, part // heads * size
    advance(
        lanes, s, head, v, v + size, _array(stage[X], (n, 2 * groups * width + heads * values)),
        _array(stage[ALPHA], (n, heads)), _array(stage[BETA], (n, heads)),
        _array(stage[RATE], (heads,)), _array(stage[SHIFT], (heads,)),
        row_starts, parent, slot, prefill, accepted, n_accepted, buffer,
        _array(stage[STATE], (slots, heads, values, width)), _array(stage[K], (2, slots, PENDING, groups, width)),
        _array(stage[U], (2, slots, PENDING, heads, values)), _array(stage[DECAY], (2, slots, PENDING, heads)),
        stage[RUN], _array(stage[OUT], (n, heads, values)),
    )  # fmt: skip


@inline
def run_stage(
    stage, plans, many, n_threads, counter, scratch, lanes, eps, n, tokens, positions,
    row_starts, parent, slot, prefill, accepted, n_accepted, buffer,
):  # fmt: skip
    """Run tasks until the int64 at address `counter` has reached their number `many`; return how many this thread ran."""
    kind, n_done = stage[KIND], 0
    if kind == MULTIPLY:
        return take_tasks(plans[stage[FIRST] : stage[STOP]], many, n_threads, counter, scratch, n, 0)
    task = fetch_add(counter, 1)
    while task < many:
        if kind == NORM:
            _norm(stage, task, eps)
        elif kind == GATED_NORM:
            _gated_norm(stage, task, eps, n)
        elif kind == EMBED:
            _embed(stage, task, tokens)
        elif kind == ANGLES:
            _angles(stage, task, n, positions)
        elif kind == CONV:
            _conv(stage, task, n, row_starts, parent, slot, prefill, accepted, n_accepted, buffer)
        else:
            _delta(stage, task, lanes, n, row_starts, parent, slot, prefill, accepted, n_accepted, buffer)
        n_done += 1
        task = fetch_add(counter, 1)
    return n_done
