"""The gated delta rule with numba: a task is a sequence, a head and a range of its value rows.

16 value rows at a time process all tokens: each token starts from its parent's state, with at most 64 states of 16 rows. So
a path through a tree has the bits of a chain, and a chain those of single steps.
"""

import numpy as np
from numba import prange

from dflash.kernels.cpu import simd
from dflash.kernels.cpu.jit import inline, kernel
from dflash.kernels.delta import gates, tiles
from dflash.kernels.ragged import PENDING

CHUNK = 32
"""Tokens of a prompt whose keys and queries are prepared at a time; they fit in the L1 cache."""

_EPSILON = np.float32(1e-6)


@inline
def _scratch(n):
    """Return `n` float32 aligned to a cache line. numba frees an array after its last use by name, not by address."""
    room = np.empty(n + simd.LANES, np.float32)
    start = -(room.ctypes.data // 4) % simd.LANES
    return room[start : start + n]


@inline
def unit_row(lanes, source, factor, target):
    """``target = factor * source / sqrt(sum(source ** 2) + 1e-6)``."""
    scale = simd.splat(factor / np.sqrt(tiles.dot(lanes, source, source) + _EPSILON))
    for at in range(0, 64 * len(lanes), 64):
        simd.store_f32(target + at, simd.mul(simd.load_f32(source + at), scale))


@inline
def _prepare(lanes, y, n_groups, group, start, n, vectors, overlaps):
    """Compute unit key, scaled unit query (both at `vectors`) and their dot product, for `n` rows."""
    size = 64 * len(lanes)
    for i in range(n):
        query = y.ctypes.data + 4 * (start + i) * y.shape[1] + group * size
        here = vectors + 2 * i * size
        unit_row(lanes, query + n_groups * size, np.float32(1), here)
        unit_row(lanes, query, np.float32(1) / np.sqrt(np.float32(16 * len(lanes))), here + size)
        overlaps[i] = tiles.dot(lanes, here, here + size)


@inline
def plan(parent, start, n, source, target):
    """Plan where each row of a tree reads its parent's state and writes its own; return the number of places needed.

    -1 in `source` is the committed state; -1 in `target` means not stored. The last child of a row reuses its place.
    """
    last_child = np.full(n, -1, np.int64)
    for i in range(n):
        if parent[start + i] >= 0:
            last_child[parent[start + i]] = i
    places = 0
    for i in range(n):
        above = parent[start + i]
        source[i] = target[above] if above >= 0 else -1
        if last_child[i] < 0:
            target[i] = -1
        elif above >= 0 and last_child[above] == i:
            target[i] = source[i]
        else:
            target[i] = places
            places += 1
    return places


@inline
def _apply_accepted(lanes, rows, s, head, v, slot, accepted, n_accepted, buffer, state, k, u, decay, run):
    """Apply the accepted rows of sequence `s` to 16 value rows of a head, from row `v` on, at address `rows`."""
    slots, n_heads, n_values, width = state.shape
    pending, n_groups = k.shape[2], k.shape[3]
    for i in range(n_accepted[s]):
        row = (buffer[s] * slots + slot[s]) * pending + accepted[s, i]
        key = k.ctypes.data + 4 * width * (row * n_groups + head // run % n_groups)
        amount = simd.load_f32(u.ctypes.data + 4 * ((row * n_heads + head) * n_values + v))
        factor = simd.read_f32(decay.ctypes.data + 4 * (row * n_heads + head))
        tiles.update(lanes, rows, rows, factor, amount, key)


@inline
def _remember(s, head, n, slot, buffer, vectors, table, k, decay, run):
    """Store the pending keys (once for a key head) and decays of `n` rows."""
    n_groups, width = k.shape[3], k.shape[4]
    here, other = slot[s], 1 - buffer[s]
    for i in range(n):
        decay[other, here, i, head] = table[gates.DECAY, i]
    group = head // run
    if head % run == 0 and group < n_groups:
        for i in range(n):
            for at in range(0, 4 * width, 64):
                target = k.ctypes.data + 4 * width * (((other * k.shape[1] + here) * k.shape[2] + i) * n_groups + group)
                simd.store_f32(target + at, simd.load_f32(vectors + 8 * width * i + at))


@inline
def _read_token(lanes, rows, key, ahead, decay, strength, overlap, value, out):
    """Store the read-out of 16 value rows at `out`; return the update that the token makes along its key.

    ``u = strength * (value - decay * (rows @ key))``; the state after it, ``decay * rows + outer(u, key)``, is not
    needed for ``out = decay * (rows @ query) + (key @ query) * u``.
    """
    predicted, found = tiles.read(lanes, rows, key, key + 64 * len(lanes), ahead)
    missing = simd.fma(simd.splat(-decay), predicted, simd.load_f32(value))
    change = simd.mul(simd.splat(strength), missing)
    simd.store_f32(out, simd.fma(change, simd.splat(overlap), simd.mul(simd.splat(decay), found)))
    return change


@inline
def advance(
    lanes, s, head, v_start, v_stop, y, alpha, beta, rate, shift,
    row_starts, parent, slot, prefill, accepted, n_accepted, buffer, state, k, u, decay, run, out,
):  # fmt: skip
    """Process all rows of sequence `s` for some value rows of a head; no other task uses these rows of the state."""
    slots, n_heads, n_values, width = state.shape
    n_groups, chunk = k.shape[3], CHUNK if prefill[s] else PENDING
    size, tile = 4 * width, 4 * width * tiles.ROWS
    room = min(chunk, row_starts[s + 1] - row_starts[s])
    vectors = _scratch(2 * width * room)
    table, overlaps = np.zeros((3, PENDING), np.float32), np.empty(PENDING, np.float32)
    source, target = np.empty(PENDING, np.int64), np.empty(PENDING, np.int64)
    n_places = 0 if prefill[s] else plan(parent, row_starts[s], room, source, target)
    places = _scratch(n_places * tiles.ROWS * width)
    for start in range(row_starts[s], row_starts[s + 1], chunk):
        n = min(chunk, row_starts[s + 1] - start)
        gates.fill(alpha, beta, head, rate[head], shift[head], start, n, table)
        _prepare(lanes, y, n_groups, head // run % n_groups, start, n, vectors.ctypes.data, overlaps)
        if v_start == 0 and not prefill[s]:
            _remember(s, head, n, slot, buffer, vectors.ctypes.data, table, k, decay, run)
        for v in range(v_start, v_stop, tiles.ROWS):
            committed = state.ctypes.data + size * ((slot[s] * n_heads + head) * n_values + v)
            if start == row_starts[s]:
                _apply_accepted(lanes, committed, s, head, v, slot, accepted, n_accepted, buffer, state, k, u, decay, run)
            for i in range(n):
                key, channel = vectors.ctypes.data + 2 * size * i, head * n_values + v
                ahead = committed + tile if start + i == row_starts[s] else 0
                before, after = committed, committed
                if not prefill[s]:
                    before = committed if source[i] < 0 else places.ctypes.data + source[i] * tile
                    after = 0 if target[i] < 0 else places.ctypes.data + target[i] * tile
                change = _read_token(
                    lanes, before, key, ahead, table[gates.DECAY, i], table[gates.BETA, i], overlaps[i],
                    y.ctypes.data + 4 * ((start + i) * y.shape[1] + 2 * n_groups * width + channel),
                    out.ctypes.data + 4 * ((start + i) * n_heads * n_values + channel),
                )  # fmt: skip
                if not prefill[s]:
                    row = ((1 - buffer[s]) * slots + slot[s]) * k.shape[2] + i
                    simd.store_f32(u.ctypes.data + 4 * (row * n_heads * n_values + channel), change)
                if after:
                    tiles.update(lanes, before, after, table[gates.DECAY, i], change, key)


@kernel
def gated_delta(
    lanes, size, y, alpha, beta, rate, shift,
    row_starts, parent, slot, prefill, accepted, n_accepted, buffer, state, k, u, decay, run, out,
):  # fmt: skip
    """Run tasks of `size` value rows. Sequences vary fastest, so that threads get equal shares of long and short ones."""
    n_sequences, n_heads, n_values = slot.shape[0], state.shape[1], state.shape[2]
    for task in prange(n_values // size * n_heads * n_sequences):
        s, part = task % n_sequences, task // n_sequences
        head, v = part % n_heads, part // n_heads * size
        advance(
            lanes, s, head, v, v + size, y, alpha, beta, rate, shift,
            row_starts, parent, slot, prefill, accepted, n_accepted, buffer, state, k, u, decay, run, out,
        )  # fmt: skip


@kernel
def apply_accepted(lanes, slot, accepted, n_accepted, buffer, state, k, u, decay, run):
    """Apply accepted rows to the state; a task is a sequence and a head."""
    n_heads, n_values, width = state.shape[1:]
    for task in prange(slot.shape[0] * n_heads):
        s, head = task // n_heads, task % n_heads
        for v in range(0, n_values, tiles.ROWS):
            rows = state.ctypes.data + 4 * width * ((slot[s] * n_heads + head) * n_values + v)
            _apply_accepted(lanes, rows, s, head, v, slot, accepted, n_accepted, buffer, state, k, u, decay, run)
