"""Compiled functions for each format: unpack rows to float32, or multiply rows with tokens.

Both are generated from the decoder of the format in `blocks.py`, so they produce the same values. They are C functions,
compiled when a model first uses the format, and called by address. So a kernel that multiplies several weights in one
launch need not know the formats at compile time.
"""

import functools
from collections.abc import Iterator
from itertools import product
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dflash.kernels.cpu.jit import c_function
from dflash.kernels.cpu.simd.emit import F32V, I64, call, constant, load, loop, prefetch, store
from dflash.kernels.formats.format import FORMATS, NUMBERED, number_of
from dflash.kernels.formats.lanes import LANES, Lanes, QuantBlock, is_zen, vector_lanes
from dflash.kernels.formats.types import BLOCKS

ROWS = 4
"""Rows that one call of an unpack function processes."""

_WIDE = vector_lanes() == LANES

DOT_ROWS = (8, 4, 4, 4, 4, 2, 2, 2) if _WIDE else (4, 2, 1, 1)
"""Rows that one call of a dot function processes, for 1, 2, 3 ... tokens: as many as keep their sums in registers."""

_CACHE_LINE = 64  # bytes
_AHEAD = 1024  # bytes, at least, from a block of a row to the block that is prefetched: those of eight rows fit the L1 cache
_SHORT = 16384  # bytes of all rows of a call up to which the L1 cache holds them beside the tokens


def step_bytes(name: str) -> tuple[int, int]:
    """Return the weights and bytes of one loop iteration: a block, or 16 unquantised values."""
    block = BLOCKS[name]
    return (LANES, LANES * block.n_bytes) if block.elements == 1 else (block.elements, block.n_bytes)


def _ahead(builder: ir.IRBuilder, name: str, stride: ir.Value, rows: int, steps: ir.Value, i: ir.Value) -> ir.Value:
    """Return the bytes from block `i` of `steps` to the block to prefetch, at the row's end in rows of a later call."""
    n_bytes = step_bytes(name)[1]
    most = I64(max(1, _AHEAD // n_bytes))
    ahead = builder.select(builder.icmp_signed("<", steps, most), steps, most)
    inside = builder.icmp_signed("<", builder.add(i, ahead), steps)
    calls = builder.udiv(builder.add(most, builder.sub(steps, I64(1))), steps)
    later = builder.sub(builder.mul(builder.mul(stride, I64(rows)), calls), builder.mul(steps, I64(n_bytes)))
    return builder.add(builder.mul(ahead, I64(n_bytes)), builder.select(inside, I64(0), later))


def _blocks(
    builder: ir.IRBuilder, name: str, source: ir.Value, stride: ir.Value, n: int, steps: ir.Value, i: ir.Value, *, once: bool
) -> list[Iterator[Lanes]]:
    """Return for each of `n` rows an iterator over the weights of block `i` of `steps`, 16 at a time.

    Rows are too short for the hardware prefetcher to follow. Where a prefetch says that a line is used once, a
    Xeon reads memory at half of the rate. From several rows side by side Zen 4 reads at half of the rate; so short rows
    are prefetched there in the order of memory.
    """
    n_bytes, found = step_bytes(name)[1], []
    start = builder.add(source, builder.mul(i, I64(n_bytes)))
    first, apart = builder.add(start, _ahead(builder, name, stride, n, steps, i)), stride
    if once and is_zen("4"):
        all_rows = builder.mul(stride, I64(n))
        short = builder.icmp_signed("<", all_rows, I64(_SHORT))
        in_order = builder.add(builder.add(source, all_rows), builder.mul(i, I64(n * n_bytes)))
        first, apart = builder.select(short, in_order, first), builder.select(short, I64(n_bytes), stride)
    for r in range(n):
        for at in range(0, n_bytes, _CACHE_LINE):
            ahead = builder.add(first, builder.add(builder.mul(apart, I64(r)), I64(at)))
            prefetch(builder, ahead, 0 if once and is_zen() else 1)
        found.append(FORMATS[name].decode(QuantBlock(builder, builder.add(start, builder.mul(stride, I64(r))))))
    return found


@intrinsic(prefer_literal=True)
def _unpack(typing_context, kind, source, stride, n, out, out_stride):
    name = NUMBERED[kind.literal_value].block.name

    def codegen(context, builder, signature, values):
        _, source, stride, n, out, out_stride = values
        outs = [builder.add(out, builder.mul(out_stride, I64(r))) for r in range(ROWS)]

        def body(i, carried):
            to = builder.mul(i, I64(4 * step_bytes(name)[0]))
            found = _blocks(builder, name, source, stride, ROWS, n, i, once=False)
            for j, *weights in zip(range(step_bytes(name)[0] // LANES), *found, strict=True):
                for w, row in zip(weights, outs, strict=True):
                    store(builder, builder.add(row, builder.add(to, I64(4 * LANES * j))), w.value)
            return carried

        loop(builder, n, [], body)
        return context.get_dummy_value()

    return types.void(kind, *(types.int64,) * 5), codegen


@intrinsic(prefer_literal=True)
def _dot(typing_context, kind, tokens, source, stride, x, x_stride, n, out, out_stride):
    name, count = NUMBERED[kind.literal_value].block.name, tokens.literal_value

    def codegen(context, builder, signature, values):
        source, stride, x, x_stride, n, out, out_stride = values[2:]
        xs = [builder.add(x, builder.mul(x_stride, I64(t))) for t in range(count)]
        rows = DOT_ROWS[count - 1]
        pairs = [(r, t) for t in range(count) for r in range(rows)]

        def body(i, sums):
            sums, at = list(sums), builder.mul(i, I64(4 * step_bytes(name)[0]))
            found = _blocks(builder, name, source, stride, rows, n, i, once=True)
            for r, row in enumerate(found):
                vectors = zip(range(step_bytes(name)[0] // LANES), row, strict=True)
                for (j, weights), (t, x) in product(vectors, enumerate(xs)):
                    value = load(builder, builder.add(x, builder.add(at, I64(4 * LANES * j))), F32V)
                    place = t * rows + r
                    sums[place] = call(builder, "llvm.fma.v16f32", weights.value, value, sums[place])
            return sums

        totals = loop(builder, n, [constant(0.0, F32V)] * len(pairs), body)
        for (r, t), total in zip(pairs, totals, strict=True):
            place = builder.add(out, builder.mul(out_stride, I64(t)))
            store(builder, builder.add(place, I64(4 * LANES * r)), total)
        return context.get_dummy_value()

    return types.void(kind, tokens, *(types.int64,) * 7), codegen


@functools.cache
def unpack_function(name: str) -> Any:
    """Return the C function ``(source, row_bytes, n_steps, out, out_bytes)`` that unpacks `ROWS` rows to float32.

    `n_steps` counts blocks, or groups of 16 unquantised values; row r goes to ``out + r * out_bytes``.
    """
    kind = number_of(name)

    @c_function(*(types.int64,) * 5)
    def unpack(source, stride, n, out, out_stride):
        _unpack(kind, source, stride, n, out, out_stride)

    return unpack


@functools.cache
def dot_function(name: str, tokens: int) -> Any:
    """Return the C function ``(source, row_bytes, x, x_bytes, n_steps, out, out_bytes)`` for rows and float32 tokens.

    ``out + t * out_bytes`` receives 16 lane sums of float32 a row, which the caller adds. Lane i is the sum of the products
    i, i + 16, ... in order, as in the tiles of `linear`. `DOT_ROWS` is the number of rows.
    """
    kind, count = number_of(name), tokens

    @c_function(*(types.int64,) * 7)
    def dot(source, stride, x, x_stride, n, out, out_stride):
        _dot(kind, count, source, stride, x, x_stride, n, out, out_stride)

    return dot
