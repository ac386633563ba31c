"""The delta rule as a C function for each key size, so that launches need not be compiled for each of them."""

import functools
from typing import Any

from numba import types

from dflash.kernels.cpu.jit import c_function, inline
from dflash.kernels.delta.cpu import advance
from dflash.kernels.joined import table
from dflash.kernels.joined.arrays import floats, ints, longs
from dflash.kernels.ragged import PENDING


@inline
def _delta(lanes, stage, task, batch):
    n, n_sequences = batch[table.ROWS], batch[table.SEQUENCES]
    width, slots, pending = stage[table.WIDTH], stage[table.DELTA_SLOTS], stage[table.DELTA_PENDING]
    size = stage[table.SIZE]
    groups, heads, values = stage[table.GROUPS], stage[table.VALUE_HEADS], stage[table.VALUES]
    s, part = task % n_sequences, task // n_sequences
    head, v = part % heads, part // heads * size
    advance(
        lanes, s, head, v, v + size, floats(stage[table.X], (n, 2 * groups * width + heads * values)),
        floats(stage[table.ALPHA], (n, heads)), floats(stage[table.BETA], (n, heads)),
        floats(stage[table.RATE], (heads,)), floats(stage[table.SHIFT], (heads,)),
        ints(batch[table.ROW_STARTS], (n_sequences + 1,)), ints(batch[table.PARENT], (n,)),
        ints(batch[table.SLOT], (n_sequences,)), ints(batch[table.PREFILL], (n_sequences,)),
        ints(batch[table.ACCEPTED], (n_sequences, PENDING)), ints(batch[table.N_ACCEPTED], (n_sequences,)),
        ints(batch[table.BUFFER], (n_sequences,)),
        floats(stage[table.STATE], (slots, heads, values, width)),
        floats(stage[table.K], (2, slots, pending, groups, width)),
        floats(stage[table.U], (2, slots, pending, heads, values)), floats(stage[table.DECAY], (2, slots, pending, heads)),
        stage[table.RUN], floats(stage[table.OUT], (n, heads, values)),
    )  # fmt: skip


@functools.cache
def delta_function(width: int) -> Any:
    """Return the C function ``(stage, task, batch)`` for keys of `width` elements.

    It runs a task of a stage: some value rows of a head of a sequence. `stage` and `batch` are addresses of rows of tables.
    """
    lanes = (0,) * (width // 16)

    @c_function(*(types.int64,) * 3)
    def delta(stage, task, batch):
        _delta(lanes, longs(stage, (table.COLUMNS,)), task, longs(batch, (table.BATCH_COLUMNS,)))

    return delta
