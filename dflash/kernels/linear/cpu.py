"""Multiply packed weights with tokens on all cores.

A task is a tile of 16 rows. One token: each row is unpacked in registers and multiplied at once. More tokens: a few rows
are unpacked into a buffer that stays in the cache and every token is multiplied with them. Both sum in the same order, so a
token has the same bits in every batch.
"""

import numpy as np
from numba import prange

from dflash.kernels.linear.tiles import (
    call_dot,
    call_unpack,
    sum_16,
    tile_1x1,
    tile_4x1,
    tile_4x2,
    tile_4x3,
    tile_4x4,
)
from dflash.kernels.numba_jit import inline, kernel
from dflash.kernels.simd import add, fetch_add, load_f32, mul, read_f32, silu, store_f32, write_f32

STORE, ADD, GATE, UP = range(4)
"""What becomes of a product: it is stored, added to what is there, or, of two weights, ``silu(gate) * up`` is stored."""

DATA, ROWS, ROW_BYTES, WIDTH, STEPS, UNPACK, DOT, MODE, TOKENS, X, X_BYTES, OUT, OUT_BYTES, COLUMNS = range(14)
"""Columns of a plan, int64: a row is a weight, the tokens at address X that meet it, and where the products go. COLUMNS is
how many there are."""

TILE = 16
_LANES_BYTES = (TILE + 4) * 64  # lane sums of a tile; a call of a dot function may write four rows' beyond the last
_BUFFER = 163840  # float32 weights to unpack at a time: 640 KiB, so that they and some tokens stay in the L2 cache


@inline
def _one_token(weight, source, rows, lanes, out):
    row_bytes, steps, dot, x = weight[ROW_BYTES], weight[STEPS], weight[DOT], weight[X]
    whole = rows // 4 * 4
    for r in range(0, whole, 4):
        call_dot(dot, source + r * row_bytes, row_bytes, x, steps, lanes + 64 * r)
    for r in range(whole, rows):
        call_dot(dot, source + r * row_bytes, 0, x, steps, lanes + 64 * r)
    sum_16(lanes, out)


@inline
def _rows_by_tokens(rows, w, w_bytes, x, x_bytes, tokens, n, out):
    if rows < 4:
        for r in range(rows):
            for t in range(tokens):
                tile_1x1(w + r * w_bytes, w_bytes, x + t * x_bytes, x_bytes, n, out + 64 * t + 4 * r)
    elif tokens == 4:
        tile_4x4(w, w_bytes, x, x_bytes, n, out)
    elif tokens == 3:
        tile_4x3(w, w_bytes, x, x_bytes, n, out)
    elif tokens == 2:
        tile_4x2(w, w_bytes, x, x_bytes, n, out)
    else:
        tile_4x1(w, w_bytes, x, x_bytes, n, out)


@inline
def _many_tokens(weight, source, rows, buffer, at_once, out):
    row_bytes, steps, width = weight[ROW_BYTES], weight[STEPS], weight[WIDTH]
    tokens, x, x_bytes = weight[TOKENS], weight[X], weight[X_BYTES]
    w_bytes = 4 * width
    for start in range(0, rows, at_once):
        n = min(at_once, rows - start)
        for r in range(n):
            call_unpack(weight[UNPACK], source + (start + r) * row_bytes, steps, buffer + r * w_bytes)
        for t in range(0, tokens, 4):
            for r in range(0, n, 4):
                _rows_by_tokens(
                    min(4, n - r),
                    buffer + r * w_bytes,
                    w_bytes,
                    x + t * x_bytes,
                    x_bytes,
                    min(4, tokens - t),
                    width // 16,
                    out + 64 * t + 4 * (start + r),
                )


@inline
def _write(weight, row, rows, products):
    """Move the products of a tile, (tokens, 16) float32, to where they belong."""
    for t in range(weight[TOKENS]):
        source = products + 64 * t
        target = weight[OUT] + t * weight[OUT_BYTES] + 4 * row
        if rows == TILE:
            value = load_f32(source)
            store_f32(target, add(load_f32(target), value) if weight[MODE] == ADD else value)
        else:
            for r in range(rows):
                value = read_f32(source + 4 * r)
                write_f32(target + 4 * r, read_f32(target + 4 * r) + value if weight[MODE] == ADD else value)


@inline
def _tile(plan, i, tile, scratch, most_tokens):
    lanes = scratch.ctypes.data
    products = lanes + _LANES_BYTES
    buffer = products + 2 * 64 * most_tokens
    weight = plan[i]
    row = tile * TILE
    rows = min(TILE, weight[ROWS] - row)
    tokens = weight[TOKENS]
    for part in range(2 if weight[MODE] == GATE else 1):
        one = plan[i + part]
        source = one[DATA] + row * one[ROW_BYTES]
        out = products + part * 64 * tokens
        if tokens == 1:
            _one_token(one, source, rows, lanes, out)
        else:
            _many_tokens(one, source, rows, buffer, _rows_at_once(one[WIDTH]), out)
    if weight[MODE] == GATE:
        for t in range(tokens):
            at = products + 64 * t
            store_f32(at, mul(silu(load_f32(at)), load_f32(at + 64 * tokens)))
    _write(weight, row, rows, products)


@inline
def _rows_at_once(width):
    return min(TILE, max(4, _BUFFER // width // 4 * 4))


@inline
def _n_tiles(weight):
    return 0 if weight[MODE] == UP else (weight[ROWS] + TILE - 1) // TILE


@inline
def _new_counter():
    """One zero; in a parallel function numba would make a launch of ``np.zeros``."""
    return np.zeros(1, np.int64)


@kernel
def multiply(plan, n_threads):
    """Carry out a plan, int64 (W, COLUMNS): multiply every weight with its tokens."""
    n_tiles, tokens, buffer_size = 0, 0, 0
    for i in range(len(plan)):
        n_tiles += _n_tiles(plan[i])
        tokens = max(tokens, plan[i, TOKENS])
        if plan[i, TOKENS] > 1:
            buffer_size = max(buffer_size, plan[i, WIDTH] * _rows_at_once(plan[i, WIDTH]))
    counter = _new_counter()
    grain = max(1, n_tiles // (8 * n_threads))
    for _ in prange(n_threads):
        scratch = np.empty(_LANES_BYTES // 4 + 32 * tokens + buffer_size, np.float32)
        while True:
            first = fetch_add(counter.ctypes.data, grain)
            if first >= n_tiles:
                break
            i, before = 0, 0
            for tile in range(first, min(first + grain, n_tiles)):
                while tile - before >= _n_tiles(plan[i]):
                    before += _n_tiles(plan[i])
                    i += 1
                _tile(plan, i, tile - before, scratch, tokens)
