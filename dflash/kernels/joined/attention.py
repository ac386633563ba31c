"""Rotation and attention as C functions for each pair of cache types, so that a launch need not be compiled for each.

Both are ``function(stage, task, batch)``, with the addresses of a stage and of a batch in their tables.
"""

import functools
from typing import Any

import numpy as np
from numba import carray, types

from dflash.kernels.attention import plan
from dflash.kernels.attention.cpu import scratch_size, work
from dflash.kernels.cpu.jit import c_function, inline
from dflash.kernels.joined import table
from dflash.kernels.joined.arrays import floats, ints, longs, pointer
from dflash.kernels.ragged import PAGE
from dflash.kernels.rope.cpu import rotate_row


@inline
def _rotate(s, b, row, k, v):
    n, sequences, heads, width = b[table.ROWS], b[table.SEQUENCES], s[table.Q_HEADS], s[table.WIDTH]
    many = k.shape[2]
    tables = floats(s[table.COS], (n, s[table.PAIRS])), floats(s[table.SINES], (n, s[table.PAIRS]))
    rotate_row(
        floats(s[table.X], (n, s[table.QUERY_WIDTH])), floats(s[table.KEY], (n, many * width)),
        floats(s[table.VALUE], (n, many * width)), s[table.Q_NORM], s[table.K_NORM], s[table.BIAS], tables[0], tables[1],
        ints(b[table.ROW_STARTS], (sequences + 1,)), ints(b[table.SEQUENCE], (n,)), ints(b[table.LENGTH], (sequences,)),
        ints(b[table.PAGES], (sequences, b[table.N_PAGES])), np.float32(s.view(np.float64)[table.EPS]),
        floats(s[table.OUT], (n, heads, width)), k, v, row, np.empty(many * width, np.float32),
    )  # fmt: skip


@inline
def _attend(s, b, head, k, v):
    """Attend with the queries of one KV head."""
    n, sequences, heads, width = b[table.ROWS], b[table.SEQUENCES], s[table.Q_HEADS], s[table.WIDTH]
    first, depth = ints(b[table.ROW_STARTS], (sequences + 1,)), ints(b[table.DEPTH], (n,))
    length, group = ints(b[table.LENGTH], (sequences,)), heads // k.shape[2]
    units, _ = plan.cut_in_units(first, depth, length, k.shape[2], group, width, 1)
    own, most, n_own = np.empty((len(units), 2), np.int64), 0, 0
    for u in range(len(units)):
        if units[u, plan.HEAD] == head:
            own[n_own, 0], own[n_own, 1] = u, plan.ALL
            most = max(most, (units[u, plan.LAST] - units[u, plan.FIRST]) * group)
            n_own += 1
    work(
        floats(s[table.X], (n, heads, width)), k, v, first, ints(b[table.PARENT], (n,)), depth, length,
        ints(b[table.PAGES], (sequences, b[table.N_PAGES])), floats(s[table.GATES], (s[table.GATED] * n, 2 * heads * width)),
        floats(s[table.OUT], (n, heads * width)), units, own[:n_own], most,
        np.empty(scratch_size(most, width), np.float32), np.empty(0, np.float32), np.zeros(1, np.int64), 0,
    )  # fmt: skip


@inline
def _shape(s, stored):
    """Return the shape of a cache."""
    return s[table.CACHE_PAGES], PAGE, s[table.KV_HEADS], stored


@functools.cache
def rotate_function(k_type: str, v_type: str) -> Any:
    """Return the C function that rotates one row and writes its key and value to caches of two types."""
    k_dtype, v_dtype = np.dtype(k_type), np.dtype(v_type)

    @c_function(*(types.int64,) * 3)
    def rotate(stage, task, batch):
        s, b = longs(stage, (table.COLUMNS,)), longs(batch, (table.BATCH_COLUMNS,))
        k = carray(pointer(s[table.K_CACHE]), _shape(s, s[table.K_STORED]), k_dtype)
        _rotate(s, b, task, k, carray(pointer(s[table.V_CACHE]), _shape(s, s[table.V_STORED]), v_dtype))

    return rotate


@functools.cache
def attend_function(k_type: str, v_type: str) -> Any:
    """Return the C function that attends with all queries of one KV head."""
    k_dtype, v_dtype = np.dtype(k_type), np.dtype(v_type)

    @c_function(*(types.int64,) * 3)
    def attend(stage, task, batch):
        s, b = longs(stage, (table.COLUMNS,)), longs(batch, (table.BATCH_COLUMNS,))
        k = carray(pointer(s[table.K_CACHE]), _shape(s, s[table.K_STORED]), k_dtype)
        _attend(s, b, task, k, carray(pointer(s[table.V_CACHE]), _shape(s, s[table.V_STORED]), v_dtype))

    return attend
