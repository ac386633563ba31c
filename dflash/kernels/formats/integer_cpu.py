"""Compiled functions that multiply rows with tokens rounded to int16, or unpack rows to whole numbers (see `records`)."""

import functools
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dflash.kernels.cpu.jit import c_function
from dflash.kernels.cpu.simd.emit import F32, F32V, I32, I64, constant, load, loop, prefetch, store
from dflash.kernels.formats import neighbour_cpu, records
from dflash.kernels.formats.cpu import ROWS
from dflash.kernels.formats.format import NUMBERED, number_of
from dflash.kernels.formats.integers import BLOCK, PART, WORDS
from dflash.kernels.formats.lanes import QuantBlock, is_zen

_I16 = ir.IntType(16)
_CACHE_LINE = 64


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
                for first in range(0, WORDS, PART):
                    for j, whole in enumerate(block.whole(first)):
                        store(builder, builder.add(to, I64(2 * (WORDS * j + first))), whole.value)
                store(
                    builder, builder.add(to, I64(records.SUMS)), block.minima.value if block.minima else constant(0.0, F32V)
                )
                store(builder, builder.add(to, I64(records.SCALE)), block.scale.value)
            return carried

        loop(builder, n, [], body)
        return context.get_dummy_value()

    return types.void(kind, *(types.int64,) * 5), codegen


@intrinsic(prefer_literal=True)
def _dot(typing_context, kind, tokens, source, stride, x, x_stride, n, out, out_stride):
    made, count = NUMBERED[kind.literal_value], tokens.literal_value

    def codegen(context, builder, signature, values):
        source, stride, x, x_stride, n, out, out_stride = values[2:]
        n_bytes, firsts, lanes = made.block.n_bytes, range(0, WORDS, PART), PART // 2
        words, floats, integers = (ir.VectorType(one, many) for one, many in ((_I16, PART), (F32, lanes), (I32, lanes)))

        def row(r, carried):
            start = builder.add(source, builder.mul(stride, r))

            def body(i, sums):
                address = builder.add(start, builder.mul(i, I64(n_bytes)))
                for at in range(0, n_bytes, _CACHE_LINE):
                    prefetch(builder, builder.add(address, I64(records.AHEAD + at)), once=is_zen())
                block = made.integers(QuantBlock(builder, address))
                of_tokens, after = builder.add(x, builder.mul(i, x_stride)), []
                for first in firsts:
                    places = [builder.add(of_tokens, I64(records.RECORD * t + 2 * first)) for t in range(count)]
                    totals = [ir.Constant(integers, [0] * lanes)] * count
                    for j, whole in enumerate(block.whole(first)):
                        for t, record in enumerate(places):
                            token = load(builder, builder.add(record, I64(2 * WORDS * j)), words)
                            totals[t] = builder.add(totals[t], records.multiply_pairs(builder, whole.value, token))
                    own = range(first // 2, first // 2 + lanes)
                    scale, minima = (part and records.lanes_of(builder, part.value, own) for part in block[:2])
                    for total, record in zip(totals, places, strict=True):
                        products = builder.sitofp(total, floats)
                        after.append(records.add_record(builder, scale, products, minima, record, sums[len(after)]))
                return after

            if made.block.elements < BLOCK:
                totals = neighbour_cpu.RowProduct(builder, (made.integers, n_bytes), start, (x, x_stride, count)).sums(n)
            else:
                totals = loop(builder, n, [ir.Constant(floats, [0.0] * lanes)] * (count * len(firsts)), body)
            for number, total in enumerate(totals):
                part, t = divmod(number, count)
                place = builder.add(builder.add(out, builder.mul(out_stride, I64(t))), builder.shl(r, I64(6)))
                store(builder, builder.add(place, I64(4 * lanes * part)), total)
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
