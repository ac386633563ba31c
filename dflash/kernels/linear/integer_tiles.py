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
from dflash.kernels.formats.lanes import in_order, vector_lanes
from dflash.kernels.formats.neighbour_cpu import multiply_block, token_words
from dflash.kernels.formats.neighbours import MANY
from dflash.kernels.linear.tiles import SUMS_BYTES, Emit, addresses, float_tile, store_sums

Values = list[ir.Value]

_LANES = vector_lanes()
_AHEAD = records.RECORD // 64 * _LANES // LANES  # cache lines of the next tokens that a part of a record prefetches
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
            of_rows = builder.mul(i, I64(records.SMALL_RECORD if small else records.RECORD))
            of_tokens, left = builder.mul(i, x_stride), builder.sub(n, builder.mul(i, I64(MANY // 2)))

            def part(p: ir.Value, carried: Values) -> Values:
                first = builder.mul(p, I64(4 * _LANES))
                rows = [builder.add(builder.add(one, of_rows), first) for one in ws_at]
                record = builder.add(builder.add(x, of_tokens), first)
                inputs = [builder.add(record, I64(records.RECORD * t)) for t in range(tokens)]
                following = builder.add(builder.add(ahead, of_tokens), builder.mul(p, I64(64 * _AHEAD)))
                lines = [builder.add(following, I64(64 * line)) for line in range(_AHEAD)]
                while lines and (small or _LANES == LANES):
                    prefetch(builder, lines.pop(0))
                if not small:
                    row_scales = [records.scale_of(builder, row, _FLOATS) for row in rows]
                    scales = records.scale_products(builder, row_scales, inputs)
                some = (builder, rows, inputs)
                products = _products_of_small(*some, left) if small else _products(*some, lines)
                for r, row in enumerate(rows):
                    minima = load(builder, builder.add(row, I64(records.SUMS)), _FLOATS)
                    for t, record in enumerate(inputs):
                        place = builder.add(at[t * ROWS + r], first)
                        so_far = load(builder, place, _FLOATS)
                        scale = records.scale_of(builder, record, _FLOATS) if small else scales(r, t)
                        added = records.add_record(builder, scale, products[t * ROWS + r], minima, record, so_far)
                        store(builder, place, added)
                return []

            if not small:
                return loop(builder, I64(LANES // _LANES), [], part)
            for p in range(LANES // _LANES):
                part(I64(p), [])
            return []

        loop(builder, builder.udiv(builder.add(n, I64(MANY // 2 - 1)), I64(MANY // 2)), [], body)
        with builder.if_then(end):
            order = range(LANES) if small else LANE_ORDER
            store_sums(builder, [records.lanes_of(builder, load(builder, place, F32V), order) for place in at], out)

    return emit


def _products(builder: ir.IRBuilder, rows: Values, inputs: Values, lines: Values) -> Values:
    """Return the lane sums of a record of each row and token as float32, without scales; prefetch the lines `lines`."""
    # With 16 registers, LLVM would spill a sum of twelve; so the last of three tokens is read for each row, as an operand.
    held = 2 if _LANES < LANES and len(inputs) == 3 else len(inputs)

    def step(j: ir.Value, totals: Values) -> Values:
        line, after = builder.shl(j, I64(6)), list(totals)
        xs = [load(builder, builder.add(record, line), _WORDS) for record in inputs[:held]]
        for r, row in enumerate(rows):
            whole = load(builder, builder.add(row, line), _WORDS)
            read = [load(builder, builder.add(record, line), _WORDS) for record in inputs[held:]]
            both = zip(totals[r::ROWS], xs + read, strict=True)
            sums = [builder.add(total, records.multiply_pairs(builder, whole, token)) for total, token in both]
            after[r::ROWS] = in_order(builder, sums) if _LANES < LANES and len(sums) > 1 else sums
        return after

    totals, steps = [ir.Constant(ir.VectorType(I32, _LANES), [0] * _LANES)] * (ROWS * len(inputs)), BLOCK // WORDS
    if _LANES == LANES:
        totals = loop(builder, I64(steps), totals, step)
    else:  # half of a record fits the cache of decoded instructions, also beside another thread of the core; both may not
        for j in range(steps):
            for at in lines[j : j + 1]:
                prefetch(builder, at)
            totals = step(I64(j), totals)
    return [builder.sitofp(total, _FLOATS) for total in totals]


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
    records.SMALL - 1: (integer_tile, (1, 2, 3, 6) if _LANES == LANES else (1, 2, 3)),
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
