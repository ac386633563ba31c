"""Matrix multiply of packed weights on all cores.

A task is a tile of 16 rows. For few tokens, rows are unpacked in registers and multiplied directly. For more tokens, some
rows are unpacked into a buffer that fits the cache, and every token is multiplied with them. Both ways sum in the same
order, so a token has the same bits in every batch.
"""

import numpy as np
from numba import prange

from dflash.kernels.cpu.jit import inline, kernel
from dflash.kernels.cpu.simd import add, fetch_add, gelu, load_f32, mul, read_f32, silu, store_f32, write_f32
from dflash.kernels.formats.cpu import DOT_ROWS
from dflash.kernels.linear.tiles import call_dot, call_unpack, sum_16, tile_1x1, tile_4x3, tile_4x4, tile_4x5

STORE, ADD, GATE, UP, GELU_GATE = range(5)
"""Epilogue of a product: store it, add it to the output, or, for two weights, store ``silu(gate) * up``, or with GELU."""

DATA, ROWS, ROW_BYTES, WIDTH, STEPS, UNPACK, MODE, TOKENS, X, X_BYTES, OUT, OUT_BYTES, DOT = range(13)
"""Columns of a plan, int64: a row describes a weight, its input at address X and its output. The columns from DOT on hold
a dot function for each number of tokens up to DOT_TOKENS."""

DOT_TOKENS = len(DOT_ROWS)
COLUMNS = DOT + DOT_TOKENS

TILE = 16
_LANES_BYTES = (TILE + 4) * 64  # lane sums of a tile for one token; a dot function may write up to four rows beyond it
_FEW = 16  # tokens that fit the L1 cache beside four unpacked rows
_BUFFER = 163840  # float32 weights to unpack at a time: 640 KiB, which fit the L2 cache beside some tokens


@inline
def _few_tokens(weight, source, rows, lanes, out):
    row_bytes, steps, x, x_bytes, tokens = weight[ROW_BYTES], weight[STEPS], weight[X], weight[X_BYTES], weight[TOKENS]
    dot, at_once = weight[DOT + tokens - 1], DOT_ROWS[tokens - 1]
    whole = rows // at_once * at_once
    for r in range(0, whole, at_once):
        call_dot(dot, source + r * row_bytes, row_bytes, x, x_bytes, steps, lanes + 64 * r, _LANES_BYTES)
    for r in range(whole, rows):
        call_dot(dot, source + r * row_bytes, 0, x, x_bytes, steps, lanes + 64 * r, _LANES_BYTES)
    for t in range(tokens):
        sum_16(lanes + _LANES_BYTES * t, out + 64 * t)


@inline
def _rows_by_tokens(rows, w, w_bytes, x, x_bytes, tokens, n, out):
    if rows < 4:
        for r in range(rows):
            for t in range(tokens):
                tile_1x1(w + r * w_bytes, w_bytes, x + t * x_bytes, x_bytes, n, out + 64 * t + 4 * r)
    elif tokens == 4:
        tile_4x4(w, w_bytes, x, x_bytes, n, out)
    elif tokens == 5:
        tile_4x5(w, w_bytes, x, x_bytes, n, out)
    else:
        tile_4x3(w, w_bytes, x, x_bytes, n, out)


@inline
def _unpack(weight, source, rows, buffer):
    """Unpack `rows` rows at `source` into a buffer."""
    row_bytes, steps, w_bytes = weight[ROW_BYTES], weight[STEPS], 4 * weight[WIDTH]
    whole = rows // 4 * 4
    for r in range(0, whole, 4):
        call_unpack(weight[UNPACK], source + r * row_bytes, row_bytes, steps, buffer + r * w_bytes, w_bytes)
    for r in range(whole, rows):
        call_unpack(weight[UNPACK], source + r * row_bytes, 0, steps, buffer + r * w_bytes, 0)


@inline
def _tokens_at_once(left):
    """Return how many of `left` tokens to take: 3 to 5, such that at least 3 or none are left. `left` is 3 or more."""
    return 5 if left % 4 == 1 else 4 if left % 4 == 0 else 3


@inline
def _many_tokens(weight, source, rows, buffer, at_once, out):
    tokens, x, x_bytes, w_bytes = weight[TOKENS], weight[X], weight[X_BYTES], 4 * weight[WIDTH]
    for start in range(0, rows, at_once):
        n = min(at_once, rows - start)
        _unpack(weight, source + start * weight[ROW_BYTES], n, buffer)
        t = 0
        while t < tokens:
            many = _tokens_at_once(tokens - t)
            for r in range(0, n, 4):
                w, here = buffer + r * w_bytes, out + 64 * t + 4 * (start + r)
                _rows_by_tokens(min(4, n - r), w, w_bytes, x + t * x_bytes, x_bytes, many, weight[WIDTH] // 16, here)
            t += many


@inline
def _write(weight, row, rows, products):
    """Write the products of a tile, (tokens, 16) float32, to the output."""
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
    lanes = (scratch.ctypes.data + 63) // 64 * 64  # a vector load across two cache lines costs two loads
    products = lanes + DOT_TOKENS * _LANES_BYTES
    buffer = products + 2 * 64 * most_tokens
    weight = plan[i]
    row = tile * TILE
    rows = min(TILE, weight[ROWS] - row)
    tokens = weight[TOKENS]
    for part in range(2 if weight[MODE] >= GATE else 1):
        one = plan[i + part]
        source = one[DATA] + row * one[ROW_BYTES]
        out = products + part * 64 * tokens
        if tokens <= DOT_TOKENS:
            _few_tokens(one, source, rows, lanes, out)
        else:
            _many_tokens(one, source, rows, buffer, _rows_at_once(one[WIDTH], tokens), out)
    if weight[MODE] == GATE:
        for t in range(tokens):
            at = products + 64 * t
            store_f32(at, mul(silu(load_f32(at)), load_f32(at + 64 * tokens)))
    elif weight[MODE] == GELU_GATE:
        for t in range(tokens):
            at = products + 64 * t
            store_f32(at, mul(gelu(load_f32(at)), load_f32(at + 64 * tokens)))
    _write(weight, row, rows, products)


@inline
def _rows_at_once(width, tokens):
    """Return the rows to unpack at a time: 4 if the tokens fit the L1 cache beside them."""
    if tokens <= _FEW:
        return 4
    return min(TILE, max(4, _BUFFER // width // 4 * 4))


@inline
def _n_tiles(weight):
    return 0 if weight[MODE] == UP else (weight[ROWS] + TILE - 1) // TILE


@inline
def _new_counter():
    """Return one zero; inside a parallel function numba would turn ``np.zeros`` into a parallel launch."""
    return np.zeros(1, np.int64)


@kernel
def multiply(plan, n_threads):
    """Execute a plan, int64 (W, COLUMNS): multiply every weight with its tokens."""
    n_tiles, tokens, buffer_size = 0, 0, 0
    for i in range(len(plan)):
        n_tiles += _n_tiles(plan[i])
        tokens = max(tokens, plan[i, TOKENS])
        if plan[i, TOKENS] > DOT_TOKENS:
            buffer_size = max(buffer_size, plan[i, WIDTH] * _rows_at_once(plan[i, WIDTH], plan[i, TOKENS]))
    counter = _new_counter()
    grain = max(1, n_tiles // (8 * n_threads))
    for _ in prange(n_threads):
        scratch = np.empty(16 + DOT_TOKENS * _LANES_BYTES // 4 + 32 * tokens + buffer_size, np.float32)
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
