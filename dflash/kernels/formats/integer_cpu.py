"""Compiled functions that multiply rows with tokens rounded to int16, or unpack rows to whole numbers (see `records`)."""

import functools
from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dflash.kernels.cpu.jit import c_function
from dflash.kernels.cpu.simd.emit import F32, F32V, I32, I64, LANES, constant, load, loop, store
from dflash.kernels.formats import neighbour_cpu, records
from dflash.kernels.formats.cpu import ROWS
from dflash.kernels.formats.format import NUMBERED, number_of
from dflash.kernels.formats.integers import BLOCK, LANE_ORDER, PART, WORDS, Parts
from dflash.kernels.formats.lanes import Lanes, QuantBlock, in_order, of_unknown_origin

_I16 = ir.IntType(16)


@intrinsic(prefer_literal=True)
def _unpack(typing_context, kind, source, stride, n, out, out_stride):
    made = NUMBERED[kind.literal_value]

    def codegen(context, builder, signature, values):
        _, source, stride, n, out, out_stride = values
        if made.block.elements < BLOCK:
            neighbour_cpu.unpack(builder, (made.integers, made.block.n_bytes), *values[1:])
            return context.get_dummy_value()

        def body(i, carried):
            for r in range(ROWS):
                row = builder.add(source, builder.mul(stride, I64(r)))
                address = builder.add(row, builder.mul(i, I64(made.block.n_bytes)))
                block = made.integers(QuantBlock(builder, address))
                to = builder.add(builder.add(out, builder.mul(out_stride, I64(r))), builder.mul(i, I64(records.RECORD)))
                for j, parts in enumerate(block.whole):
                    for p, whole in enumerate(parts):
                        store(builder, builder.add(to, I64(2 * (WORDS * j + PART * p))), whole.value)
                store(
                    builder, builder.add(to, I64(records.SUMS)), block.minima.value if block.minima else constant(0.0, F32V)
                )
                store(builder, builder.add(to, I64(records.SCALE)), block.scale.value)
            return carried

        loop(builder, n, [], body)
        return context.get_dummy_value()

    return types.void(kind, *(types.int64,) * 5), codegen


def _by_part(builder: ir.IRBuilder, kind: ir.Type, whole: Iterator[Parts]) -> list[Iterator[Parts]]:
    """Store the weights of a block and return how they are loaded again, one part of each `WORDS` after the other."""
    memory, n = builder.ptrtoint(cgutils.alloca_once(builder, ir.ArrayType(kind, BLOCK // PART)), I64), WORDS // PART
    for i, part in enumerate(part for parts in whole for part in parts):
        store(builder, builder.add(memory, I64(2 * PART * i)), part.value)
    memory = of_unknown_origin(builder, memory)
    places = ([builder.add(memory, I64(2 * PART * i)) for i in range(p, BLOCK // PART, n)] for p in range(n))
    return [([Lanes(builder, load(builder, place, kind))] for place in part) for part in places]


@intrinsic(prefer_literal=True)
def _dot(typing_context, kind, tokens, source, stride, x, x_stride, n, out, out_stride):
    made, count = NUMBERED[kind.literal_value], tokens.literal_value

    def codegen(context, builder, signature, values):
        source, stride, x, x_stride, n, out, out_stride = values[2:]
        n_bytes, lanes, n_parts = made.block.n_bytes, PART // 2, WORDS // PART
        words, floats, integers = (ir.VectorType(one, many) for one, many in ((_I16, PART), (F32, lanes), (I32, lanes)))

        def row(r, carried):
            start = builder.add(source, builder.mul(stride, r))

            def body(i, sums):
                address = builder.add(start, builder.mul(i, I64(n_bytes)))
                records.prefetch_ahead(builder, address, n_bytes, n_tokens=count)
                block = made.integers(QuantBlock(builder, address))
                of_tokens, after = builder.add(x, builder.mul(i, x_stride)), []
                # registers hold eight sums of two parts, or of one of them
                wholes = [block.whole] if n_parts * count <= 8 else _by_part(builder, words, block.whole)
                for first, whole in enumerate(wholes):
                    pairs = [(p, t) for p in (range(n_parts) if len(wholes) == 1 else [first]) for t in range(count)]
                    places = [builder.add(of_tokens, I64(records.RECORD * t + 2 * PART * p)) for p, t in pairs]
                    totals = [ir.Constant(integers, [0] * lanes)] * len(pairs)
                    for j, parts in enumerate(whole):
                        for number, (p, _) in enumerate(pairs):
                            token = load(builder, builder.add(places[number], I64(2 * WORDS * j)), words)
                            product = records.multiply_pairs(builder, parts[p - first].value, token)
                            totals[number] = builder.add(totals[number], product)
                        totals = totals if n_parts == 1 else in_order(builder, totals)
                    for (p, _), total, record in zip(pairs, totals, places, strict=True):
                        own = range(lanes * p, lanes * (p + 1))
                        scale, minima = (part and records.lanes_of(builder, part.value, own) for part in block[:2])
                        products, so_far = builder.sitofp(total, floats), sums[len(after)]
                        scale = builder.fmul(scale, records.scale_of(builder, record, floats))
                        after.append(records.add_record(builder, scale, products, minima, record, so_far))
                return after

            if made.block.elements < BLOCK:
                totals = neighbour_cpu.RowProduct(builder, (made.integers, n_bytes), start, (x, x_stride, count)).sums(n)
            else:
                totals = loop(builder, n, [ir.Constant(floats, [0.0] * lanes)] * (n_parts * count), body)
            order = LANE_ORDER if made.block.elements == BLOCK else range(LANES)
            for t in range(count):
                place = builder.add(builder.add(out, builder.mul(out_stride, I64(t))), builder.shl(r, I64(6)))
                whole = builder.shuffle_vector(totals[t], totals[-count + t], records.constant_lanes(order))
                store(builder, place, whole)
            return carried

        loop(builder, I64(records.INTEGER_ROWS), [], row)
        return context.get_dummy_value()

    return types.void(kind, tokens, *(types.int64,) * 7), codegen


@functools.cache
def integer_unpack_function(name: str) -> Any:
    """Return the C function ``(source, row_bytes, n_blocks, out, out_bytes)`` that unpacks `ROWS` rows to records."""
    kind = number_of(name)

    @c_function(*(types.int64,) * 5)
    def unpack(source, stride, n, out, out_stride):
        _unpack(kind, source, stride, n, out, out_stride)

    return unpack


@functools.cache
def integer_dot_function(name: str, tokens: int) -> Any:
    """Return the C function ``(source, row_bytes, x, x_bytes, n_blocks, out, out_bytes)``: rows times rounded tokens.

    As `dflash.kernels.formats.cpu.dot_function`, but it reads `INTEGER_ROWS` one after another, and `x_bytes` are those from
    a block of the tokens to the next: the records of a block lie beside each other.
    """
    kind, count = number_of(name), tokens

    @c_function(*(types.int64,) * 7)
    def dot(source, stride, x, x_stride, n, out, out_stride):
        _dot(kind, count, source, stride, x, x_stride, n, out, out_stride)

    return dot
