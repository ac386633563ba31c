"""Tokens rounded to int16, 256 values at a time, for products with quantised weights."""

from llvmlite import ir
from numba import types

from dflash.kernels.cpu.jit import inline
from dflash.kernels.cpu.simd.emit import F32, F32V, I32V, I64, LANES, call, fold, load, op, spread, store, sum_lanes
from dflash.kernels.formats import byte_cpu
from dflash.kernels.formats.integers import BLOCK, LANE_ORDER, ORDER
from dflash.kernels.formats.records import RECORD, SCALE, SMALL, SUMS, constant_lanes, lanes_of

_LARGEST = 32767.0
_MAGIC = 1.5 * 2**23
"""Added to a float32 below 2 ** 22, it leaves the nearest whole number in the last bits; ties go to the even one."""

_SMALLEST = 2.0**-126


@op(types.void, *(types.int64,) * 4)
def _round_block(builder, x, width, kind, record):
    """Round up to 256 float32 at `x` to a record for a kind of formats; a value that is not finite makes the scale NaN."""
    zero = F32V([0.0] * LANES)
    values = []
    for i in range(BLOCK // LANES):
        is_there = builder.icmp_signed("<", I64(LANES * i), width)
        offset = builder.select(is_there, I64(4 * LANES * i), I64(0))
        values.append(builder.select(is_there, load(builder, builder.add(x, offset), F32V), zero))
    largest = not_finite = zero
    for value in values:
        size = call(builder, "llvm.fabs.v16f32", value)
        largest = builder.select(builder.fcmp_ordered(">", size, largest), size, largest)
        not_finite = call(builder, "llvm.fma.v16f32", value, zero, not_finite)

    def larger(low: ir.Value, high: ir.Value) -> ir.Value:
        return builder.select(builder.fcmp_ordered(">", low, high), low, high)

    scale = builder.fdiv(fold(builder, largest, larger), ir.Constant(F32, _LARGEST))
    tiny = builder.fcmp_ordered("<", scale, ir.Constant(F32, _SMALLEST))
    none = ir.Constant(F32, 0.0)
    inverse = spread(builder, builder.select(tiny, none, builder.fdiv(ir.Constant(F32, 1.0), scale)))
    scale = builder.fadd(builder.select(tiny, none, scale), fold(builder, not_finite, builder.fadd))
    scales, magic, rounded, words = spread(builder, scale), F32V([_MAGIC] * LANES), [], []
    is_small = builder.icmp_signed("==", kind, I64(SMALL))
    for i, value in enumerate(values):
        moved = builder.fadd(builder.fmul(value, inverse), magic)
        rounded.append(builder.fsub(moved, magic))
        whole = builder.trunc(builder.bitcast(moved, I32V), ir.VectorType(ir.IntType(16), LANES))
        words.append(whole)
        for half in range(2):
            weight = 2 * LANES * (i // 2) + ORDER.index(LANES * (i % 2) + LANES // 2 * half)
            place = LANES * (i + [0, 1, -1, 0][i % 4]) + LANES // 2 * half
            offset = builder.select(is_small, I64(2 * place), I64(2 * weight))
            part = builder.shuffle_vector(whole, whole, constant_lanes(range(LANES // 2 * half, LANES // 2 * (half + 1))))
            store(builder, builder.add(record, offset), part)
    sums = sum_lanes(builder, rounded)
    halves = ([*range(i, LANES, 2), *[LANES] * (LANES // 2)] for i in (0, 1))
    pairs = builder.fadd(*(builder.shuffle_vector(sums, zero, ir.Constant(I32V, half)) for half in halves))
    of_kind = builder.select(is_small, pairs, lanes_of(builder, sums, LANE_ORDER))
    if byte_cpu.IS_USED:
        is_bytes = builder.icmp_signed("==", kind, I64(byte_cpu.BYTES))
        of_kind = builder.select(is_bytes, lanes_of(builder, sums, byte_cpu.ORDER), of_kind)
        with builder.if_then(is_bytes):
            byte_cpu.store_bytes(builder, words, record)
    store(builder, builder.add(record, I64(SUMS)), builder.fmul(of_kind, scales))
    store(builder, builder.add(record, I64(SCALE)), scales)


@inline
def record_bytes(width):
    """Return the bytes of a rounded token of `width` values."""
    return (width + BLOCK - 1) // BLOCK * RECORD


@inline
def round_token(x, width, kind, record, n_bytes):
    """Round `width` float32 at address `x` to records for a kind of formats, `n_bytes` from one to the next."""
    for block in range((width + BLOCK - 1) // BLOCK):
        _round_block(x + 4 * BLOCK * block, width - BLOCK * block, kind, record + n_bytes * block)
