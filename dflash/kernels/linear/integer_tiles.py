"""Tiles of dot products of records: rows unpacked to int16 and rounded tokens, whose sums are those of `integer_cpu`."""

import functools
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dflash.kernels.cpu.jit import c_function
from dflash.kernels.cpu.simd.emit import F32, F32V, I32, I64, LANES, load, loop, prefetch, store
from dflash.kernels.formats import records
from dflash.kernels.formats.cpu import ROWS
from dflash.kernels.formats.integers import BLOCK, LANE_ORDER, WORDS
from dflash.kernels.formats.lanes import of_unknown_origin, vector_lanes
from dflash.kernels.formats.neighbour_cpu import multiply_block, token_words
from dflash.kernels.formats.neighbours import MANY
from dflash.kernels.linear.tiles import SUMS_BYTES, Emit, addresses, float_tile, store_sums

Values = list[ir.Value]

_LANES = vector_lanes()
_WORDS, _FLOATS = ir.VectorType(ir.IntType(16), 2 * _LANES), ir.VectorType(F32, _LANES)


def integer_tile(tokens: int, *, small: bool = False) -> Emit:
    """Return ``emit(builder, w, w_stride, x, x_stride, n, begin, end, sums, ahead, out)`` for records, `n` times 64 weights.

    Arguments are those of the tiles of float32, but `x_stride` is that of records, whose tokens lie beside each other. The
    lane sums are in memory between records, since the sums of a record need the registers.
    """

    def emit(builder, w, w_stride, x, x_stride, n, begin, end, sums, ahead, out):
        ws_at = addresses(builder, w, w_stride, ROWS)
        at = [
            builder.add(line, I64(64 * r)) for line in addresses(builder, sums, I64(SUMS_BYTES), tokens) for r in range(ROWS)
        ]
        with builder.if_then(begin):
            for place in at:
                store(builder, place, F32V([0.0] * LANES))

        def body(i: ir.Value, carried: Values) -> Values:
            of_tokens = builder.mul(i, x_stride)
            for line in range(0, records.RECORD, 64):
                prefetch(builder, builder.add(builder.add(ahead, of_tokens), I64(line)))
            for first in range(0, 4 * LANES, 4 * _LANES):
                offset = builder.add(builder.mul(i, I64(records.SMALL_RECORD if small else records.RECORD)), I64(first))
                rows = [builder.add(one, offset) for one in ws_at]
                inputs = [builder.add(builder.add(x, of_tokens), I64(records.RECORD * t + first)) for t in range(tokens)]
                if not small:
                    of_rows = [records.scale_of(builder, row, _FLOATS) for row in rows]
                    scales = records.scale_products(builder, of_rows, inputs)
                left = builder.sub(n, builder.mul(i, I64(MANY // 2)))
                products = _products_of_small(builder, rows, inputs, left) if small else _products(builder, rows, inputs)
                for r, row in enumerate(rows):
                    minima = load(builder, builder.add(row, I64(records.SUMS)), _FLOATS)
                    for t, record in enumerate(inputs):
                        place = builder.add(at[t * ROWS + r], I64(first))
                        so_far = load(builder, place, _FLOATS)
                        scale = records.scale_of(builder, record, _FLOATS) if small else scales(r, t)
                        added = records.add_record(builder, scale, products[t * ROWS + r], minima, record, so_far)
                        store(builder, place, added)
            return []

        loop(builder, builder.udiv(builder.add(n, I64(MANY // 2 - 1)), I64(MANY // 2)), [], body)
        with builder.if_then(end):
            order = range(LANES) if small else LANE_ORDER
            store_sums(builder, [records.lanes_of(builder, load(builder, place, F32V), order) for place in at], out)

    return emit


def _products(builder: ir.IRBuilder, rows: Values, inputs: Values) -> Values:
    """Return the lane sums of a record of each row and token as float32, without the scale of the row."""
    # With 16 registers, LLVM would spill a sum of twelve; so the last of three tokens is read for each row, as an operand.
    held = 2 if _LANES < LANES and len(inputs) == 3 else len(inputs)
    at_once = 2 if _LANES < LANES else 1  # steps between two branches: those of half registers have few products

    def step(j: ir.Value, totals: Values) -> Values:
        after = list(totals)
        for k in range(at_once):
            line = builder.shl(builder.add(builder.mul(j, I64(at_once)), I64(k)), I64(6))
            xs = [load(builder, builder.add(record, line), _WORDS) for record in inputs[:held]]
            for r, row in enumerate(rows):
                if held < len(inputs):
                    line = of_unknown_origin(builder, line)
                whole = load(builder, builder.add(row, line), _WORDS)
                read = [load(builder, builder.add(record, line), _WORDS) for record in inputs[held:]]
                for t, token in enumerate(xs + read):
                    place = t * ROWS + r
                    after[place] = builder.add(after[place], records.multiply_pairs(builder, whole, token))
        return after

    start = [ir.Constant(ir.VectorType(I32, _LANES), [0] * _LANES)] * (ROWS * len(inputs))
    return [builder.sitofp(total, _FLOATS) for total in loop(builder, I64(BLOCK // WORDS // at_once), start, step)]


def _products_of_small(builder: ir.IRBuilder, rows: Values, inputs: Values, left: ir.Value) -> Values:
    """Return those of up to `left` pairs of blocks for formats of 32 weights a block, with the scales of the row."""

    def step(j: ir.Value, so_far: Values) -> Values:
        line, after = builder.shl(j, I64(7)), list(so_far)
        xs = [token_words(builder, builder.add(record, line), _WORDS) for record in inputs]
        for r, row in enumerate(rows):
            whole = token_words(builder, builder.add(row, line), _WORDS)
            scale = load(builder, builder.add(row, builder.add(builder.shl(j, I64(6)), I64(records.SCALE))), _FLOATS)
            for t, token in enumerate(xs):
                place = t * ROWS + r
                after[place] = multiply_block(builder, whole, scale, token, so_far[place])
        return after

    pairs = builder.select(builder.icmp_signed("<", left, I64(MANY // 2)), left, I64(MANY // 2))
    return loop(builder, pairs, [ir.Constant(_FLOATS, [0.0] * _LANES)] * (ROWS * len(inputs)), step)


_TILES = {
    0: (float_tile, (1, 2, 3, 4, 5)),
    records.SMALL - 1: (integer_tile, (1, 2, 3, 6)),
    records.SMALL: (functools.partial(integer_tile, small=True), (1, 2, 3, 4) if _LANES == LANES else (1, 2)),
}
"""The tiles for each `INTEGER` of a plan, and their numbers of tokens."""


@intrinsic(prefer_literal=True)
def _tiles(typing_context, kind, many, w, w_bytes, x, x_bytes, n, begin, end, sums, ahead, out):
    tile, numbers = _TILES[kind.literal_value]

    def codegen(context, builder, signature, values):
        many, w, w_bytes, x, x_bytes, n, begin, end, *others = values[1:]
        flags = [builder.icmp_signed("!=", flag, I64(0)) for flag in (begin, end)]
        for tokens in numbers:
            with builder.if_then(builder.icmp_signed("==", many, I64(tokens))):
                tile(tokens)(builder, w, w_bytes, x, x_bytes, n, *flags, *others)
        return context.get_dummy_value()

    return types.void(kind, *(types.int64,) * 11), codegen


@functools.cache
def tile_function(integer: int) -> Any:
    """Return a C function ``(many, rows, w, w_bytes, x, x_bytes, n, begin, end, sums, ahead, one, out)`` for an `INTEGER`.

    It multiplies unpacked rows, `ROWS` at a time, with `many` tokens, which are `one` bytes apart; see `tiles.float_tile`.
    `n` counts groups of 16 weights, or of 64 if they are whole numbers.
    """

    @c_function(*(types.int64,) * 13)
    def multiply(many, rows, w, w_bytes, x, x_bytes, n, begin, end, sums, ahead, one, out):
        for r in range(0, rows, ROWS):
            row, following = w + r * w_bytes, ahead + r // ROWS * one
            _tiles(integer, many, row, w_bytes, x, x_bytes, n, begin, end, sums + 64 * r, following, out + 4 * r)

    return multiply
