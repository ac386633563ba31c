"""Matrix multiply of packed weights on all cores.

A task is one tile of 16 rows, or two. For few tokens, rows are unpacked in registers and multiplied directly. For more
tokens, some rows and columns are unpacked into a buffer that fits the L1 cache, and every token is multiplied with them. The
lane sums of wide rows wait in memory for the next columns. Both ways sum in the same order, so a token has the same bits in
every batch.
"""

import numpy as np
from numba import get_num_threads, prange

from dflash.kernels.cpu.jit import inline, kernel
from dflash.kernels.cpu.simd import add, fetch_add, gelu, load_f32, mul, prefetch, read_f32, silu, store_f32, write_f32
from dflash.kernels.formats.cpu import DOT_ROWS
from dflash.kernels.formats.lanes import vector_lanes
from dflash.kernels.linear.tiles import call_dot, call_unpack, sum_16, tile_1, tile_2, tile_3, tile_4, tile_5

STORE, ADD, GATE, UP, GELU_GATE = range(5)
"""Epilogue of a product: store it, add it to the output, or, for two weights, store ``silu(gate) * up``, or with GELU."""

DATA, ROWS, ROW_BYTES, WIDTH, STEPS, UNPACK, MODE, TOKENS, X, X_BYTES, OUT, OUT_BYTES, DOT = range(13)
"""Columns of a plan, int64: a row describes a weight, its input at address X and its output. The columns from DOT on hold
a dot function for each number of tokens up to DOT_TOKENS."""

DOT_TOKENS = len(DOT_ROWS)
COLUMNS = DOT + DOT_TOKENS

TILE = 16
_SUMS_BYTES = (TILE + 4) * 64  # lane sums of a tile for one token; no power of two, so that tokens do not share cache sets
_DEPTH = 512  # columns that are unpacked at a time: 16 rows of them and four tokens fit the L1 cache
_FEW = 16  # tokens for which whole rows are unpacked, four at a time,
_FEW_INPUTS = _FEW * 1024  # if they have no more inputs in all; beyond, the inputs leave the L1 cache between four rows
_TILES = 2  # tiles of a task for more tokens, whose columns are then read from memory once
_TOKENS = 128  # tokens whose lane sums and columns fit the L2 cache
_START = 512  # bytes of each of the first rows of a task that are prefetched before it: its 4 KiB fit the L1 cache
_WIDE = vector_lanes() == 16


@inline
def _few_tokens(weight, source, rows, sums, out):
    row_bytes, steps, x, x_bytes, tokens = weight[ROW_BYTES], weight[STEPS], weight[X], weight[X_BYTES], weight[TOKENS]
    dot, at_once = weight[DOT + tokens - 1], DOT_ROWS[tokens - 1]
    step = at_once if rows >= at_once else 1
    for start in range(0, rows, step):
        r = min(start, rows - step)  # the last call repeats rows of the call before
        stride = row_bytes if step == at_once else 0
        call_dot(dot, source + r * row_bytes, stride, x, x_bytes, steps, sums + 64 * r, _SUMS_BYTES)
    for t in range(tokens):
        sum_16(sums + t * _SUMS_BYTES, out + 64 * t)


@inline
def _unpack(weight, source, rows, steps, buffer, w_bytes):
    """Unpack `steps` steps of `rows` rows at `source` into a buffer."""
    row_bytes = weight[ROW_BYTES]
    whole = rows // 4 * 4
    for r in range(0, whole, 4):
        call_unpack(weight[UNPACK], source + r * row_bytes, row_bytes, steps, buffer + r * w_bytes, w_bytes)
    for r in range(whole, rows):
        call_unpack(weight[UNPACK], source + r * row_bytes, 0, steps, buffer + r * w_bytes, 0)


@inline
def _tokens_at_once(left):
    """Return how many of `left` tokens to multiply at a time, as many as keep their sums in registers."""
    if _WIDE:
        return 5 if left % 4 == 1 and left > 1 else min(left, 4 if left % 4 == 0 else 3)
    return min(left, 3 if left % 3 == 0 else 2)


@inline
def _multiply_rows(w, w_bytes, x, x_bytes, many, n, begin, end, sums, ahead, out):
    if many == 4:
        tile_4(w, w_bytes, x, x_bytes, n, begin, end, sums, _SUMS_BYTES, ahead, out)
    elif many == 3:
        tile_3(w, w_bytes, x, x_bytes, n, begin, end, sums, _SUMS_BYTES, ahead, out)
    elif many == 5:
        tile_5(w, w_bytes, x, x_bytes, n, begin, end, sums, _SUMS_BYTES, ahead, out)
    elif many == 2:
        tile_2(w, w_bytes, x, x_bytes, n, begin, end, sums, _SUMS_BYTES, ahead, out)
    else:
        tile_1(w, w_bytes, x, x_bytes, n, begin, end, sums, _SUMS_BYTES, ahead, out)


@inline
def _multiply_unpacked(w, w_bytes, rows, x, x_bytes, tokens, n, begin, end, sums, sums_bytes, out):
    """Multiply some columns of unpacked rows with some tokens."""
    t = 0
    while t < tokens:
        many = _tokens_at_once(tokens - t)
        at, ahead = x + t * x_bytes, x + (t + many) * x_bytes
        for r in range(0, rows, 4):
            own, to = sums + t * sums_bytes + 64 * r, out + 64 * t + 4 * r
            _multiply_rows(w + r * w_bytes, w_bytes, at, x_bytes, many, n, begin, end, own, ahead + r // 4 * x_bytes, to)
        t += many


@inline
def _unpacks_whole_rows(weight):
    return weight[TOKENS] <= _FEW and weight[TOKENS] * weight[WIDTH] <= _FEW_INPUTS


@inline
def _rows_and_columns(weight):
    """Return the rows and columns that are unpacked at a time."""
    return (4, weight[WIDTH]) if _unpacks_whole_rows(weight) else (TILE, min(_DEPTH, weight[WIDTH]))


@inline
def _pitch(columns):
    """Return the bytes of an unpacked row, no power of two, so that rows do not share cache sets."""
    return 4 * columns + 64


@inline
def _many_tokens(weight, source, rows, first, tokens, buffer, sums, out):
    """Multiply the rows of a task with some tokens."""
    x_bytes, row_bytes, width, steps = weight[X_BYTES], weight[ROW_BYTES], weight[WIDTH], weight[STEPS]
    step, step_bytes = width // steps, row_bytes // steps
    at_once, columns = _rows_and_columns(weight)
    sums_bytes, w_bytes = _SUMS_BYTES if columns < width else 0, _pitch(columns)
    for start in range(0, width, columns):
        n = min(columns, width - start)
        x, begin, end = weight[X] + first * x_bytes + 4 * start, start == 0, start + n == width
        for r in range(0, rows, at_once):
            n_rows, tile = min(at_once, rows - r), r // TILE
            _unpack(weight, source + r * row_bytes + start // step * step_bytes, n_rows, n // step, buffer, w_bytes)
            own, to = sums + tile * tokens * sums_bytes, out + 64 * tile * weight[TOKENS] + 4 * (r % TILE)
            _multiply_unpacked(buffer, w_bytes, n_rows, x, x_bytes, tokens, n // 16, begin, end, own, sums_bytes, to)


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
def _task_rows(weight):
    return TILE if weight[TOKENS] <= _FEW else _TILES * TILE


@inline
def _task(plan, i, row, scratch, most_tokens, buffer_bytes):
    """Compute a task, whose rows begin at `row`."""
    sums = (scratch.ctypes.data + 63) // 64 * 64  # a vector load across two cache lines costs two loads
    buffer = sums + _TILES * min(most_tokens, _TOKENS) * _SUMS_BYTES
    products = buffer + buffer_bytes
    weight = plan[i]
    tokens, rows = weight[TOKENS], min(_task_rows(weight), weight[ROWS] - row)
    for part in range(2 if weight[MODE] >= GATE else 1):
        one = plan[i + part]
        source = one[DATA] + row * one[ROW_BYTES]
        out = products + 64 * part * _TILES * tokens
        if tokens <= DOT_TOKENS:
            _few_tokens(one, source, rows, sums, out)
        for first in range(0, tokens if tokens > DOT_TOKENS else 0, _TOKENS):
            _many_tokens(one, source, rows, first, min(_TOKENS, tokens - first), buffer, sums, out + 64 * first)
    for r in range(0, rows, TILE):
        out = products + 64 * (r // TILE) * tokens
        if weight[MODE] == GATE:
            for at in range(out, out + 64 * tokens, 64):
                store_f32(at, mul(silu(load_f32(at)), load_f32(at + 64 * _TILES * tokens)))
        elif weight[MODE] == GELU_GATE:
            for at in range(out, out + 64 * tokens, 64):
                store_f32(at, mul(gelu(load_f32(at)), load_f32(at + 64 * _TILES * tokens)))
        _write(weight, row + r, min(TILE, rows - r), out)


@inline
def _n_tasks(weight):
    rows = _task_rows(weight)
    return 0 if weight[MODE] == UP else (weight[ROWS] + rows - 1) // rows


@inline
def _locate(plan, task):
    """Return the weight of a task and its first row."""
    i = 0
    while task >= _n_tasks(plan[i]):
        task -= _n_tasks(plan[i])
        i += 1
    return i, task * _task_rows(plan[i])


@inline
def _prefetch_start(plan, task):
    """Prefetch the beginning of a task's first rows, which no earlier rows prefetch."""
    i, row = _locate(plan, task)
    n_bytes = plan[i, ROW_BYTES]
    for r in range(row, min(row + DOT_ROWS[0], plan[i, ROWS])):
        start = plan[i, DATA] + r * n_bytes
        for at in range(start, start + min(n_bytes, _START), 64):
            prefetch(at)


@inline
def _new_counter():
    """Return one zero; inside a parallel function numba would turn ``np.zeros`` into a parallel launch."""
    return np.zeros(1, np.int64)


@inline
def scratch_bytes(tokens, buffer_bytes):
    """Return the size of a thread's scratch memory for plans of at most `tokens` tokens."""
    return 64 + _TILES * min(tokens, _TOKENS) * _SUMS_BYTES + buffer_bytes + 2 * _TILES * 64 * tokens


@inline
def count_tasks(plan):
    """Return the number of tasks of a plan."""
    n_tasks = 0
    for i in range(len(plan)):
        n_tasks += _n_tasks(plan[i])
    return n_tasks


@inline
def take_tasks(plan, n_tasks, n_threads, counter, scratch, tokens, buffer_bytes):
    """Run tasks until the int64 at address `counter` has reached their number; return how many this thread ran."""
    grain, n_done = max(1, n_tasks // (8 * n_threads)), 0
    first = fetch_add(counter, grain)
    while first < n_tasks:
        following = fetch_add(counter, grain)
        if following < n_tasks:
            _prefetch_start(plan, following)
        last = min(first + grain, n_tasks)
        for task in range(first, last):
            i, row = _locate(plan, task)
            _task(plan, i, row, scratch, tokens, buffer_bytes)
        n_done += last - first
        first = following
    return n_done


@kernel
def multiply(plan):
    """Execute a plan, int64 (W, COLUMNS): multiply every weight with its tokens."""
    n_threads, n_tasks, tokens, buffer_bytes = get_num_threads(), count_tasks(plan), 0, 0
    for i in range(len(plan)):
        tokens = max(tokens, plan[i, TOKENS])
        rows, columns = _rows_and_columns(plan[i])
        if plan[i, TOKENS] > DOT_TOKENS:
            buffer_bytes = max(buffer_bytes, rows * _pitch(columns))
    counter = _new_counter()
    for _ in prange(n_threads):
        scratch = np.empty(scratch_bytes(tokens, buffer_bytes) // 4, np.float32)
        take_tasks(plan, n_tasks, n_threads, counter.ctypes.data, scratch, tokens, buffer_bytes)
