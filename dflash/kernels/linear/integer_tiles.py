"""Tiles of dot products of records: rows unpacked to int16 and rounded tokens, whose sums are those of `integer_cpu`."""

from typing import Any

from llvmlite import ir
from numba import types

from dflash.kernels.cpu.simd.emit import F32, F32V, I32, I64, LANES, load, loop, op, prefetch, store
from dflash.kernels.formats.cpu import ROWS
from dflash.kernels.formats.integer_cpu import RECORD, SCALE, SUMS, add_block, multiply_pairs
from dflash.kernels.formats.integers import BLOCK, WORDS
from dflash.kernels.formats.lanes import of_unknown_origin, vector_lanes
from dflash.kernels.linear.tiles import addresses, store_sums, zeros_or_loaded


def _tile(tokens: int) -> Any:
    """Make ``tile(w, w_stride, x, x_stride, n, begin, end, sums, sums_stride, ahead, out)`` for `n` blocks.

    Arguments are those of the tiles of float32, but `x_stride` is that of blocks, whose tokens lie beside each other. The
    lane sums are in memory between blocks, since the integer sums of a block need the registers.
    """
    lanes = vector_lanes()
    words = ir.VectorType(ir.IntType(16), 2 * lanes)
    floats, integers = ir.VectorType(F32, lanes), ir.VectorType(I32, lanes)
    # With 16 registers, LLVM would spill a sum of twelve; so the last of three tokens is read for each row, as an operand.
    held = 2 if lanes < LANES and tokens == 3 else tokens

    def emit(builder, w, w_stride, x, x_stride, n, begin, end, sums, sums_stride, ahead, out):
        ws_at = addresses(builder, w, w_stride, ROWS)
        at = [builder.add(line, I64(64 * r)) for line in addresses(builder, sums, sums_stride, tokens) for r in range(ROWS)]
        for place in at:
            started = zeros_or_loaded(builder, begin, [place], F32V)
            store(builder, place, started[0])

        def body(i: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            offset = builder.mul(i, I64(RECORD))
            of_tokens = builder.mul(i, x_stride)
            for line in range(0, RECORD, 64):
                prefetch(builder, builder.add(builder.add(ahead, of_tokens), I64(line)))
            for first in range(0, 4 * LANES, 4 * lanes):
                own = [builder.add(one, builder.add(offset, I64(first))) for one in ws_at]
                records = [builder.add(builder.add(x, of_tokens), I64(RECORD * t + first)) for t in range(tokens)]

                def step(j: ir.Value, totals: list[ir.Value], own=own, records=records) -> list[ir.Value]:
                    line, after = builder.shl(j, I64(6)), list(totals)
                    xs = [load(builder, builder.add(record, line), words) for record in records[:held]]
                    for r, row in enumerate(own):
                        if held < tokens:
                            line = of_unknown_origin(builder, line)
                        whole = load(builder, builder.add(row, line), words)
                        read = [load(builder, builder.add(record, line), words) for record in records[held:]]
                        for t, token in enumerate(xs + read):
                            place = t * ROWS + r
                            after[place] = builder.add(totals[place], multiply_pairs(builder, whole, token))
                    return after

                start = [ir.Constant(integers, [0] * lanes)] * len(at)
                totals = loop(builder, I64(BLOCK // WORDS), start, step)
                for r, row in enumerate(own):
                    scale = load(builder, builder.add(row, I64(SCALE)), floats)
                    minima = load(builder, builder.add(row, I64(SUMS)), floats)
                    for t, record in enumerate(records):
                        place = builder.add(at[t * ROWS + r], I64(first))
                        so_far = load(builder, place, floats)
                        store(builder, place, add_block(builder, scale, minima, totals[t * ROWS + r], record, so_far))
            return carried

        loop(builder, n, [], body)
        with builder.if_then(end):
            store_sums(builder, [load(builder, place, F32V) for place in at], out)

    emit.__name__ = f"integer_tile_{tokens}"
    return op(types.void, *(types.int64,) * 5, types.boolean, types.boolean, *(types.int64,) * 4)(emit)


integer_tile_1, integer_tile_2, integer_tile_3, integer_tile_6 = (_tile(tokens) for tokens in (1, 2, 3, 6))
