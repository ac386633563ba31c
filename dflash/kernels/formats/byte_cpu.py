"""Products of one token with Q4_K where AVX-512 is made of halves: the token as bytes, so that scales multiply sums.

A rounded value is ``256 * high + low`` with a signed byte and an unsigned one. An instruction multiplies 64 bytes with
weights of 4 bits and adds pairs to int16, the next one multiplies these with the scales and adds them: 16 multiplies for
256 weights, as with words, but half of the vectors of weights and scales. All sums are exact, so the bits are those of
`integer_cpu`.

Of each 128 values of a record, 64 bytes are high and 64 low ones for weights in the lower nibbles, then for the upper ones.
Lane i of 16 has the values of its place in `ORDER` of two sub-blocks: two bytes of the first, two of the second.
"""

import functools
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from dflash.kernels.cpu.jit import c_function
from dflash.kernels.cpu.simd.emit import F32V, I32, I32V, I64, LANES, constant, load, loop, op, spread, store
from dflash.kernels.formats import records
from dflash.kernels.formats.integers import WORDS
from dflash.kernels.formats.lanes import QuantBlock, has, is_zen, of_unknown_origin
from dflash.kernels.formats.types import BLOCKS

BYTES = 3
"""How a token is rounded for these products; other kinds are the `INTEGER` of a plan's row."""

ORDER = [*range(0, LANES, 2), *range(1, LANES, 2)]
"""The order of lanes: a sub-block's minimum belongs to two neighbours, and minima lie beside each other."""

IS_USED = is_zen("4") and has("avx512bw")

_BYTES, _WORDS = ir.VectorType(ir.IntType(8), 4 * LANES), ir.VectorType(ir.IntType(16), WORDS)


def store_bytes(builder: ir.IRBuilder, words: list[ir.Value], record: ir.Value) -> None:
    """Store the int16 of a record, 16 in a vector, as bytes."""
    for place, first in enumerate((0, 1, 4, 5)):  # sub-blocks of 32: in nibbles of the same 64 bytes
        both = [words[i : i + 2] for i in (2 * first, 2 * first + 4)]
        pairs = [builder.bitcast(builder.shuffle_vector(*one, records.constant_lanes(range(WORDS))), _BYTES) for one in both]
        for plane in (0, 1):
            chosen = [2 * WORDS * half + 4 * o + 2 * i + 1 - plane for o in ORDER for half in (0, 1) for i in (0, 1)]
            own = builder.shuffle_vector(*pairs, records.constant_lanes(chosen))
            store(builder, builder.add(record, I64(128 * place + 64 * plane)), own)


def _scales(builder: ir.IRBuilder, block: ir.Value) -> tuple[list[ir.Value], ir.Value]:
    """Return pairs of scales as int16 in all lanes, for the lower and upper nibbles of 64 bytes, and the minima in `ORDER`.

    They pass through memory, whose loads broadcast for free; a load from two stores would wait for the cache.
    """
    packed, last = load(builder, builder.add(block, I64(4)), I64), load(builder, builder.add(block, I64(12)), I32)
    last = builder.zext(last, I64)
    fours = builder.and_(builder.or_(last, builder.shl(last, I64(28))), I64(0x0F0F0F0F0F0F0F0F))
    twos = builder.and_(builder.lshr(packed, I64(2)), I64(0x3030303030303030))
    first, second = builder.and_(packed, I64(0x3F3F3F3F3F3F3F3F)), builder.or_(fours, twos)
    memory = cgutils.alloca_once(builder, ir.ArrayType(I64, 3))
    address = builder.ptrtoint(memory, I64)
    for i, four in enumerate((first, builder.lshr(first, I64(8)), second, builder.lshr(second, I64(8)))):
        store(builder, builder.add(address, I64(4 * i)), builder.and_(builder.trunc(four, I32), I32(0x00FF00FF)))
    minima = builder.or_(builder.lshr(first, I64(32)), builder.and_(second, I64(0xFFFFFFFF << 32)))
    store(builder, builder.add(address, I64(16)), minima)
    stored = of_unknown_origin(builder, address)
    pairs = [spread(builder, load(builder, builder.add(stored, I64(4 * i)), I32)) for i in range(4)]
    eight = load(builder, builder.add(stored, I64(16)), ir.VectorType(ir.IntType(8), LANES // 2))
    eight = builder.uitofp(eight, ir.VectorType(F32V.element, LANES // 2))
    return [builder.bitcast(one, _WORDS) for one in pairs], records.lanes_of(builder, eight, [*range(8), *range(8)])


def _sums(builder: ir.IRBuilder, block: ir.Value, token: ir.Value, scales: list[ir.Value]) -> ir.Value:
    """Return the int32 lane sums of a block."""
    kind, name = ir.FunctionType(_WORDS, [_BYTES] * 2), "llvm.x86.avx512.pmaddubs.w.512"
    multiply = cgutils.get_or_insert_function(builder.module, kind, name)
    totals = [constant(0, I32V)] * 2
    order, nibble = [word for o in ORDER for word in (o, LANES + o)], _WORDS([0x0F0F] * WORDS)
    for i in range(4):
        packed = load(builder, builder.add(block, I64(16 + 64 * (i // 2))), _WORDS)
        packed = records.lanes_of(builder, packed, order)
        quants = builder.lshr(packed, _WORDS([4] * WORDS)) if i % 2 else packed
        weights = builder.bitcast(builder.and_(quants, nibble), _BYTES)
        high, low = (load(builder, builder.add(token, I64(128 * i + 64 * plane)), _BYTES) for plane in (0, 1))
        for plane, (unsigned, signed) in enumerate(((weights, high), (low, weights))):
            scaled = records.multiply_pairs(builder, builder.call(multiply, [unsigned, signed]), scales[i])
            totals[plane] = builder.add(totals[plane], scaled)
    return builder.add(builder.shl(totals[0], constant(8, I32V)), totals[1])


@op(types.void, *(types.int64,) * 6)
def _dot(
    builder: ir.IRBuilder, source: ir.Value, stride: ir.Value, x: ir.Value, x_stride: ir.Value, n: ir.Value, out: ir.Value
) -> None:
    n_bytes = BLOCKS["Q4_K"].n_bytes

    def row(r: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
        start = builder.add(source, builder.mul(stride, r))

        def body(i: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            address, token = builder.add(start, builder.mul(i, I64(n_bytes))), builder.add(x, builder.mul(i, x_stride))
            records.prefetch_ahead(builder, address, n_bytes, n_tokens=1)
            block, (scales, minima) = QuantBlock(builder, address), _scales(builder, address)
            products = builder.sitofp(_sums(builder, address, token, scales), F32V)
            minima = builder.fneg(builder.fmul(minima, block.each_f16(2).value))
            scale = builder.fmul(block.each_f16(0).value, records.scale_of(builder, token, F32V))
            return [records.add_record(builder, scale, products, minima, token, sums[0])]

        (total,) = loop(builder, n, [constant(0.0, F32V)], body)
        ordered = records.lanes_of(builder, total, [ORDER.index(i) for i in range(LANES)])
        store(builder, builder.add(out, builder.shl(r, I64(6))), ordered)
        return carried

    loop(builder, I64(records.INTEGER_ROWS), [], row)


@functools.cache
def byte_dot_function(name: str) -> Any:
    """Return a function as `integer_cpu.integer_dot_function` does, for one token as `BYTES`, or None if there is none."""
    if name != "Q4_K" or not IS_USED:
        return None

    @c_function(*(types.int64,) * 7)
    def dot(source, stride, x, x_stride, n, out, out_stride):
        _dot(source, stride, x, x_stride, n, out)

    return dot
