"""Compiled functions for K-quants and IQ4_XS: multiply rows with tokens rounded to int16, or unpack rows to int16.

A rounded token has a record of `RECORD` bytes for each block of 256 values: the values as int16, the sums of each 16 of them
as float32, times their scale, and the scale as 16 float32. Unpacked rows have such records: whole numbers, minima, scale. A
product of a block is ``(d * scale) * sum of whole numbers + minima * sums``. Lane i of 16 of an integer sum has the
products 2 i and 2 i + 1 of each 32, so the bits of a product are the same with any instructions.
"""

import functools
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dflash.kernels.cpu.jit import c_function
from dflash.kernels.cpu.simd.emit import F32, I32, I64, LANES, call, load, loop, prefetch, store
from dflash.kernels.formats.cpu import ROWS
from dflash.kernels.formats.format import NUMBERED, number_of
from dflash.kernels.formats.integers import BLOCK, PART, WORDS
from dflash.kernels.formats.lanes import QuantBlock, has, is_zen

SUMS, SCALE, RECORD = 2 * BLOCK, 2 * BLOCK + 4 * LANES, 2 * BLOCK + 8 * LANES
"""Bytes to the sums or minima in a record, to the scale, and of a record."""

AHEAD = 4096
"""Bytes from a block to the one that is prefetched: rows are read in the order of memory."""

INTEGER_ROWS = 8
"""Rows that one call of a dot function processes, one after another; with 2, multiplies of 8 tokens take 3 % more."""

_I16 = ir.IntType(16)
_CACHE_LINE = 64


def multiply_pairs(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Return int32 lanes ``a[2 i] * b[2 i] + a[2 i + 1] * b[2 i + 1]`` of vectors of int16."""
    n = a.type.count
    kind = ir.VectorType(ir.IntType(32), n // 2)
    name = {32: "llvm.x86.avx512.pmaddw.d.512" if has("avx512bw") else "", 16: "llvm.x86.avx2.pmadd.wd"}[n]
    if name and has("avx2"):
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [a.type, a.type]), name)
        return builder.call(function, [a, b])
    if n == WORDS:
        halves = [[_lanes(builder, x, range(i, i + LANES)) for x in (a, b)] for i in (0, LANES)]
        low, high = (multiply_pairs(builder, *half) for half in halves)
        return builder.shuffle_vector(low, high, constant_lanes(range(LANES)))
    products = []
    for first in (0, 1):
        x, y = (builder.sext(_lanes(builder, v, range(first, n, 2)), kind) for v in (a, b))
        products.append(builder.mul(x, y))
    return builder.add(*products)


def constant_lanes(lanes: range) -> ir.Constant:
    """Return the numbers of lanes, for a shuffle."""
    return ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), list(lanes))


def _lanes(builder: ir.IRBuilder, value: ir.Value, lanes: range) -> ir.Value:
    return builder.shuffle_vector(value, value, constant_lanes(lanes))


@intrinsic(prefer_literal=True)
def _unpack(typing_context, kind, source, stride, n, out, out_stride):
    made = NUMBERED[kind.literal_value]

    def codegen(context, builder, signature, values):
        _, source, stride, n, out, out_stride = values

        def body(i, carried):
            for r in range(ROWS):
                row = builder.add(source, builder.mul(stride, I64(r)))
                address = builder.add(row, builder.mul(i, I64(made.block.n_bytes)))
                block = made.integers(QuantBlock(builder, address))
                to = builder.add(builder.add(out, builder.mul(out_stride, I64(r))), builder.mul(i, I64(RECORD)))
                for first in range(0, WORDS, PART):
                    for j, whole in enumerate(block.whole(first)):
                        store(builder, builder.add(to, I64(2 * (WORDS * j + first))), whole.value)
                store(builder, builder.add(to, I64(SUMS)), block.minima.value)
                store(builder, builder.add(to, I64(SCALE)), block.scale.value)
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
                    prefetch(builder, builder.add(address, I64(AHEAD + at)), once=is_zen())
                block = made.integers(QuantBlock(builder, address))
                of_tokens, after = builder.add(x, builder.mul(i, x_stride)), []
                for first in firsts:
                    records = [builder.add(of_tokens, I64(RECORD * t + 2 * first)) for t in range(count)]
                    totals = [ir.Constant(integers, [0] * lanes)] * count
                    for j, whole in enumerate(block.whole(first)):
                        for t, record in enumerate(records):
                            token = load(builder, builder.add(record, I64(2 * WORDS * j)), words)
                            totals[t] = builder.add(totals[t], multiply_pairs(builder, whole.value, token))
                    own = range(first // 2, first // 2 + lanes)
                    scale, minima = (_lanes(builder, part.value, own) for part in (block.scale, block.minima))
                    for total, record in zip(totals, records, strict=True):
                        after.append(add_block(builder, scale, minima, total, record, sums[len(after)]))
                return after

            totals = loop(builder, n, [ir.Constant(floats, [0.0] * lanes)] * (count * len(firsts)), body)
            for number, total in enumerate(totals):
                part, t = divmod(number, count)
                place = builder.add(builder.add(out, builder.mul(out_stride, I64(t))), builder.shl(r, I64(6)))
                store(builder, builder.add(place, I64(4 * lanes * part)), total)
            return carried

        loop(builder, I64(INTEGER_ROWS), [], row)
        return context.get_dummy_value()

    return types.void(kind, tokens, *(types.int64,) * 7), codegen


def add_block(
    builder: ir.IRBuilder, scale: ir.Value, minima: ir.Value, total: ir.Value, record: ir.Value, so_far: ir.Value
) -> ir.Value:
    """Add the product of a block with the token at `record`, or some lanes of it, to float32 lanes."""
    kind = scale.type
    both = builder.fmul(scale, load(builder, builder.add(record, I64(SCALE)), kind))
    fma = f"llvm.fma.v{kind.count}f32"
    so_far = call(builder, fma, both, builder.sitofp(total, kind), so_far)
    return call(builder, fma, minima, load(builder, builder.add(record, I64(SUMS)), kind), so_far)


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
