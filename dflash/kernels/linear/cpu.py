"""Matrix multiply of packed weights on all cores.

A task is one tile of 16 rows, for at most 128 tokens. For few tokens, rows are unpacked in registers and multiplied
directly. For more tokens, some rows and columns are unpacked into a buffer that fits the L1 cache, and every token is
multiplied with them. The lane sums of wide rows wait in memory for the next columns. Both ways sum in the same order, so a
token has the same bits in every batch.

Products with quantised weights are sums of whole numbers, for which tokens are rounded to int16: by each thread for itself
if there are few, else by all threads before the tasks.
"""

import numpy as np
from numba import get_num_threads, prange

from dflash.kernels.cpu.jit import inline, kernel
from dflash.kernels.cpu.simd import add, fetch_add, gelu, load_f32, mul, prefetch, read_f32, silu, store_f32, write_f32
from dflash.kernels.formats.byte_cpu import BYTES
from dflash.kernels.formats.cpu import DOT_ROWS
from dflash.kernels.formats.integers import BLOCK
from dflash.kernels.formats.lanes import vector_lanes
from dflash.kernels.formats.records import INTEGER_ROWS, RECORD, SMALL, SMALL_RECORD
from dflash.kernels.linear.rounding import record_bytes, round_token
from dflash.kernels.linear.tiles import SUMS_BYTES, call_dot, call_tile, call_unpack, sum_16

STORE, ADD, GATE, UP, GELU_GATE = range(5)
"""Epilogue of a product: store it, add it to the output, or, for two weights, store ``silu(gate) * up``, or with GELU."""

DATA, ROWS, ROW_BYTES, WIDTH, STEPS, UNPACK, MODE, TOKENS = range(8)
X, X_BYTES, OUT, OUT_BYTES, INTEGER, ROUNDED, MULTIPLY, BYTE_DOT, DOT = range(8, 17)
"""Columns of a plan, int64: a row describes a weight, its input at address X and its output. INTEGER is not 0 for products
of whole numbers (`records.SMALL`); then ROUNDED is the address of the rounded tokens, or 0 if each thread rounds them.
MULTIPLY is a tile function, BYTE_DOT a function of `byte_cpu` or 0; the columns from DOT on hold a dot function for each
number of tokens: up to DOT_TOKENS for whole numbers, else up to the length of DOT_ROWS."""

DOT_TOKENS = 8
COLUMNS = DOT + DOT_TOKENS

TILE = 16
_DEPTH = 512  # columns that are unpacked at a time: 16 rows of them and four tokens fit the L1 cache
_INTEGER_DEPTH = 768  # most columns of whole numbers that are unpacked as one, of half of the rows: a short rest costs more
_FEW = 16  # most tokens for which a task is one tile of rows, by dot functions or by rows that are unpacked four at a time
_FEW_INPUTS = _FEW * 1024  # most inputs of these tokens together: more would leave the L1 cache between two groups of rows
_LEAST = 4  # fewest tokens of a call whose rounded inputs do not fit it
_TOKENS = 128  # most tokens of a task; their lane sums and columns fit the L2 cache
_START = 512  # bytes of each of the first rows of a task that are prefetched before it: its 4 KiB fit the L1 cache
_INTEGER_START = 4096  # bytes of a task that are prefetched before it if rows are read one after another
_WIDE = vector_lanes() == 16
_CLOSE_INPUTS = (12 if _WIDE else 10) * 1024  # most rounded inputs that fit the L1 cache, often of 48 or of 32 KiB


@inline
def _kind(weight):
    """Return how the tokens of a weight are rounded: as `INTEGER` says, or to bytes."""
    is_single = weight[TOKENS] == 1 and weight[ROUNDED] == 0
    return BYTES if is_single and weight[BYTE_DOT] != 0 else weight[INTEGER]


@inline
def _tokens_of_a_dot(weight):
    """Return the tokens of one call of a dot function: all, or equal shares of rounded ones, which fit the L1 cache."""
    tokens = weight[TOKENS]
    if weight[INTEGER] == 0:
        return tokens
    most = min(max(_CLOSE_INPUTS // weight[WIDTH], _LEAST), DOT_TOKENS)
    n_calls = (tokens + most - 1) // most
    return (tokens + n_calls - 1) // n_calls


@inline
def _few_tokens(weight, source, rows, x, x_bytes, sums, out):
    row_bytes, steps, tokens = weight[ROW_BYTES], weight[STEPS], weight[TOKENS]
    many = _tokens_of_a_dot(weight)
    for first in range(0, tokens, many):
        n = min(many, tokens - first)
        dot = weight[BYTE_DOT] if _kind(weight) == BYTES else weight[DOT + n - 1]
        at_once = INTEGER_ROWS if weight[INTEGER] else DOT_ROWS[n - 1]
        step = at_once if rows >= at_once else 1
        inputs, lanes = x + first * RECORD, sums + first * SUMS_BYTES
        for start in range(0, rows, step):
            r = min(start, rows - step)  # the last call repeats rows of the call before
            stride = row_bytes if step == at_once else 0
            call_dot(dot, source + r * row_bytes, stride, inputs, x_bytes, steps, lanes + 64 * r, SUMS_BYTES)
    for t in range(tokens):
        sum_16(sums + t * SUMS_BYTES, out + 64 * t)


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
def _integer_tokens_at_once(integer, left):
    """Return how many of `left` rounded tokens to multiply at a time."""
    if integer == SMALL:
        return min(left, 4 if _WIDE else 2)
    if _WIDE and left >= 6:
        return 6
    return 3 if left == 3 or left >= 5 else min(left, 2)


@inline
def _multiply_unpacked(integer, function, w, w_bytes, rows, x, x_bytes, tokens, columns, begin, end, sums, sums_bytes, out):
    """Multiply some columns of unpacked rows with some tokens."""
    t, one = 0, RECORD if integer else x_bytes
    n = (columns + 63) // 64 if integer else columns // 16
    while t < tokens:
        many = _integer_tokens_at_once(integer, tokens - t) if integer else _tokens_at_once(tokens - t)
        at, ahead = x + t * one, x + (t + many) * one
        own, to = sums + t * sums_bytes, out + 64 * t
        call_tile(function, many, rows, w, w_bytes, at, x_bytes, n, begin, end, own, ahead, one, to)
        t += many


@inline
def _are_few(weight):
    """Return whether dot functions multiply the tokens, without a buffer of unpacked rows."""
    return weight[TOKENS] <= (_FEW if weight[INTEGER] else len(DOT_ROWS))


@inline
def _unpacks_whole_rows(weight):
    return weight[TOKENS] <= _FEW and weight[TOKENS] * weight[WIDTH] <= _FEW_INPUTS


@inline
def _rows_and_columns(weight):
    """Return the rows and columns that are unpacked at a time."""
    if _unpacks_whole_rows(weight):
        return 4, weight[WIDTH]
    if weight[INTEGER] and _DEPTH < weight[WIDTH] <= _INTEGER_DEPTH:
        return TILE // 2, weight[WIDTH]
    return TILE, min(_DEPTH, weight[WIDTH])


@inline
def _pitch(weight, columns):
    """Return the bytes from an unpacked row to the next, no power of two, so that rows do not share cache sets."""
    if weight[INTEGER] == SMALL:
        return 64 + record_bytes(columns) // RECORD * SMALL_RECORD
    return 64 + (record_bytes(columns) if weight[INTEGER] else 4 * columns)


@inline
def _prefetch_rows(source, rows, row_bytes, n_bytes):
    """Prefetch `n_bytes` of each row."""
    for r in range(rows):
        for at in range(source + r * row_bytes, source + r * row_bytes + n_bytes, 64):
            prefetch(at)


@inline
def _many_tokens(weight, source, rows, inputs, x_bytes, first, tokens, buffer, sums, out):
    """Multiply the rows of a task with some tokens."""
    row_bytes, width, steps = weight[ROW_BYTES], weight[WIDTH], weight[STEPS]
    step, step_bytes = width // steps, row_bytes // steps
    at_once, columns = _rows_and_columns(weight)
    w_bytes = _pitch(weight, columns)
    sums_bytes = SUMS_BYTES if columns < width else 0
    for start in range(0, width, columns):
        n = min(columns, width - start)
        begin, end = start == 0, start + n == width
        at = first * RECORD + start // BLOCK * x_bytes if weight[INTEGER] else first * x_bytes + 4 * start
        following = (start + n) // step * step_bytes if not end else rows * row_bytes
        for r in range(0, rows, at_once):
            n_rows = min(at_once, rows - r)
            _unpack(weight, source + r * row_bytes + start // step * step_bytes, n_rows, n // step, buffer, w_bytes)
            _prefetch_rows(source + r * row_bytes + following, n_rows, row_bytes, n // step * step_bytes)
            kind, function, x, to = weight[INTEGER], weight[MULTIPLY], inputs + at, out + 4 * r
            _multiply_unpacked(
                kind, function, buffer, w_bytes, n_rows, x, x_bytes, tokens, n, begin, end, sums, sums_bytes, to
            )


@inline
def _write(weight, row, rows, first, tokens, products):
    """Write the products of a tile, (tokens, 16) float32, to the output, from token `first` on."""
    for t in range(tokens):
        source = products + 64 * t
        target = weight[OUT] + (first + t) * weight[OUT_BYTES] + 4 * row
        if rows == TILE:
            value = load_f32(source)
            store_f32(target, add(load_f32(target), value) if weight[MODE] == ADD else value)
        else:
            for r in range(rows):
                value = read_f32(source + 4 * r)
                write_f32(target + 4 * r, read_f32(target + 4 * r) + value if weight[MODE] == ADD else value)


@inline
def _inputs(weight, own, rounded):
    """Return the address of a weight's tokens, the bytes from one to the next, and the address of those rounded at `own`.

    Rounded tokens lie beside each other; then the bytes are those from a block to the next. If the weight needs rounded
    tokens and has none, and the tokens at `own` are others, this thread rounds its tokens to there.
    """
    if weight[INTEGER] == 0:
        return weight[X], weight[X_BYTES], rounded
    n_bytes = weight[TOKENS] * RECORD
    if weight[ROUNDED] != 0:
        return weight[ROUNDED], n_bytes, rounded
    these = weight[X] + _kind(weight)
    if rounded != these:
        for t in range(weight[TOKENS]):
            x = weight[X] + t * weight[X_BYTES]
            round_token(x, weight[WIDTH], _kind(weight), own + t * RECORD, n_bytes)
    return own, n_bytes, these


@inline
def _task(plan, i, first, row, scratch, most_tokens, buffer_bytes, own, rounded):
    """Compute a task, tokens from `first` and rows from `row` on; return which tokens are at `own`, rounded."""
    sums = (scratch.ctypes.data + 63) // 64 * 64  # a vector load across two cache lines costs two loads
    buffer = sums + min(most_tokens, _TOKENS) * SUMS_BYTES
    products = buffer + buffer_bytes
    weight = plan[i]
    tokens, rows = min(_TOKENS, weight[TOKENS] - first), min(TILE, weight[ROWS] - row)
    for part in range(2 if weight[MODE] >= GATE else 1):
        one = plan[i + part]
        source = one[DATA] + row * one[ROW_BYTES]
        out = products + 64 * part * tokens
        x, x_bytes, rounded = _inputs(one, own, rounded)
        if _are_few(one):
            _few_tokens(one, source, rows, x, x_bytes, sums, out)
        else:
            _many_tokens(one, source, rows, x, x_bytes, first, tokens, buffer, sums, out)
    if weight[MODE] == GATE:
        for at in range(products, products + 64 * tokens, 64):
            store_f32(at, mul(silu(load_f32(at)), load_f32(at + 64 * tokens)))
    elif weight[MODE] == GELU_GATE:
        for at in range(products, products + 64 * tokens, 64):
            store_f32(at, mul(gelu(load_f32(at)), load_f32(at + 64 * tokens)))
    _write(weight, row, rows, first, tokens, products)
    return rounded


@inline
def _n_row_tasks(weight):
    return 0 if weight[MODE] == UP else (weight[ROWS] + TILE - 1) // TILE


@inline
def _n_tasks(weight):
    return _n_row_tasks(weight) * ((weight[TOKENS] + _TOKENS - 1) // _TOKENS)


@inline
def _locate(plan, task):
    """Return the weight of a task, its first token and its first row; rows vary fastest, so tokens stay in a cache."""
    i = 0
    while task >= _n_tasks(plan[i]):
        task -= _n_tasks(plan[i])
        i += 1
    n = _n_row_tasks(plan[i])
    return i, task // n * _TOKENS, task % n * TILE


@inline
def _prefetch_start(plan, task):
    """Prefetch the beginning of a task's first rows, which no earlier rows prefetch."""
    i, _, row = _locate(plan, task)
    n_bytes = plan[i, ROW_BYTES]
    if plan[i, INTEGER]:
        start = plan[i, DATA] + row * n_bytes
        for at in range(start, start + min(_INTEGER_START, (plan[i, ROWS] - row) * n_bytes), 64):
            prefetch(at)
        return
    for r in range(row, min(row + DOT_ROWS[0], plan[i, ROWS])):
        start = plan[i, DATA] + r * n_bytes
        for at in range(start, start + min(n_bytes, _START), 64):
            prefetch(at)


@inline
def _new_counter():
    """Return one zero; inside a parallel function numba would turn ``np.zeros`` into a parallel launch."""
    return np.zeros(1, np.int64)


@inline
def scratch_bytes(plan, tokens, buffer_bytes):
    """Return the size of a thread's scratch memory for plans of at most `tokens` tokens."""
    return 128 + _fixed_bytes(tokens, buffer_bytes) + _own_bytes(plan)


@inline
def _fixed_bytes(tokens, buffer_bytes):
    """Return the bytes of sums, unpacked rows and products."""
    return min(tokens, _TOKENS) * (SUMS_BYTES + 2 * 64) + buffer_bytes


@inline
def _own_bytes(plan):
    """Return the bytes of tokens that a thread rounds for itself."""
    n_bytes = 0
    for i in range(len(plan)):
        if plan[i, INTEGER] and plan[i, ROUNDED] == 0:
            n_bytes = max(n_bytes, plan[i, TOKENS] * record_bytes(plan[i, WIDTH]))
    return n_bytes


@inline
def buffer_bytes_of(plan):
    """Return the bytes of the rows that a thread unpacks."""
    n_bytes = 0
    for i in range(len(plan)):
        if not _are_few(plan[i]):
            rows, columns = _rows_and_columns(plan[i])
            n_bytes = max(n_bytes, rows * _pitch(plan[i], columns))
    return n_bytes


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
    grain, n_done, rounded = max(1, n_tasks // (8 * n_threads)) if tokens <= _FEW else 1, 0, 0
    own = (scratch.ctypes.data + _fixed_bytes(tokens, buffer_bytes) + 127) // 64 * 64
    first = fetch_add(counter, grain)
    while first < n_tasks:
        following = fetch_add(counter, grain)
        if following < n_tasks:
            _prefetch_start(plan, following)
        last = min(first + grain, n_tasks)
        for task in range(first, last):
            i, token, row = _locate(plan, task)
            rounded = _task(plan, i, token, row, scratch, tokens, buffer_bytes, own, rounded)
        n_done += last - first
        first = following
    return n_done


@inline
def _rounded_by(plan, i):
    """Return the first row before or at `i` that has the same input and needs it rounded in the same way."""
    found, j = i, i - 1
    while j >= 0 and plan[j, X] == plan[i, X]:
        if plan[j, INTEGER] == plan[i, INTEGER]:
            found = j
        j -= 1
    return found


@inline
def _place_rounded(plan, start):
    """Set the addresses of rounded tokens, from `start` on, and return the first address behind them."""
    for i in range(len(plan)):
        if plan[i, INTEGER]:
            j = _rounded_by(plan, i)
            plan[i, ROUNDED] = plan[j, ROUNDED] if j < i else start
            start += plan[i, TOKENS] * record_bytes(plan[i, WIDTH]) if j == i else 0
    return start


@inline
def _round_share(plan, thread, n_threads):
    """Round one of `n_threads` tokens of all inputs."""
    turn = 0
    for i in range(len(plan)):
        if plan[i, INTEGER] and _rounded_by(plan, i) == i:
            x, record, n_bytes = plan[i, X], plan[i, ROUNDED], plan[i, TOKENS] * RECORD
            for t in range((thread - turn) % n_threads, plan[i, TOKENS], n_threads):
                round_token(x + t * plan[i, X_BYTES], plan[i, WIDTH], plan[i, INTEGER], record + t * RECORD, n_bytes)
            turn += plan[i, TOKENS]


@inline
def _forget_rounded(plan, inputs):
    """Clear the addresses of rounded tokens; numba frees the array `inputs` after this last use."""
    for i in range(len(plan)):
        plan[i, ROUNDED] = 0


def multiply(plan):
    """Execute a plan, int64 (W, COLUMNS): multiply every weight with its tokens."""
    _multiply(plan, get_num_threads())  # a kernel that asks for the number itself isn't cached on disk


@kernel
def _multiply(plan, n_threads):
    n_tasks, tokens, buffer_bytes = count_tasks(plan), 0, buffer_bytes_of(plan)
    for i in range(len(plan)):
        tokens = max(tokens, plan[i, TOKENS])
    inputs = np.empty(64 + _place_rounded(plan, 0) if tokens > DOT_TOKENS else 0, np.uint8)
    if tokens > DOT_TOKENS:
        _place_rounded(plan, (inputs.ctypes.data + 63) // 64 * 64)
        for thread in prange(n_threads):
            _round_share(plan, thread, n_threads)
    counter = _new_counter()
    for _ in prange(n_threads):
        scratch = np.empty(scratch_bytes(plan, tokens, buffer_bytes) // 4, np.float32)
        take_tasks(plan, n_tasks, n_threads, counter.ctypes.data, scratch, tokens, buffer_bytes)
    _forget_rounded(plan, inputs)
