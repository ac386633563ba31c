"""Quantization of 32 floats to a block of q8_0 or q4_0."""

import numpy as np
from llvmlite import ir
from numba import types

from dflash.kernels.cpu.simd.emit import F32, F32V, I32V, I64, LANES, call, constant, f32x16, fold, op, spread, store

_BELOW_HALF = float(np.nextafter(np.float32(0.5), np.float32(0)))
"""Added before truncation: 1/2 itself would round the largest float32 below 1/2 up to 1."""


def _extreme(builder: ir.IRBuilder, name: str, a: ir.Value, b: ir.Value) -> ir.Value:
    """Return the largest or the smallest lane of two vectors."""

    def choose(x: ir.Value, y: ir.Value) -> ir.Value:
        return call(builder, f"llvm.{name}.v{x.type.count}f32", x, y)

    return fold(builder, choose(a, b), choose)


@op(types.float32, types.int64, f32x16, f32x16)
def store_q8_0(builder, address, a, b):
    """Store 32 lanes as signed bytes and return their scale, as `dflash.kernels.kv_types.quantize` defines them."""
    sizes = [call(builder, "llvm.fabs.v16f32", x) for x in (a, b)]
    scale = builder.fdiv(_extreme(builder, "maxnum", *sizes), ir.Constant(F32, 127.0))
    zero = ir.Constant(F32, 0.0)
    inverse = builder.fdiv(ir.Constant(F32, 1.0), scale)
    inverse = spread(builder, builder.select(builder.fcmp_ordered("==", scale, zero), zero, inverse))
    half = constant(_BELOW_HALF, F32V)
    for i, x in enumerate((a, b)):
        wanted = builder.fmul(x, inverse)
        nearest = builder.fptosi(builder.fadd(wanted, call(builder, "llvm.copysign.v16f32", half, wanted)), I32V)
        bytes_of_it = builder.trunc(nearest, ir.VectorType(ir.IntType(8), LANES))
        store(builder, builder.add(address, I64(LANES * i)), bytes_of_it)
    return scale


@op(types.float32, types.int64, f32x16, f32x16)
def store_q4_0(builder, address, a, b):
    """Store 32 lanes as 16 bytes of two numbers and return their scale, as `store_q8_0` does for its format."""
    high, low = (_extreme(builder, name, a, b) for name in ("maxnum", "minnum"))
    is_low = builder.fcmp_ordered(">=", builder.fneg(low), high)
    scale = builder.fdiv(builder.select(is_low, low, high), ir.Constant(F32, -8.0))
    zero = ir.Constant(F32, 0.0)
    inverse = builder.fdiv(ir.Constant(F32, 1.0), scale)
    inverse = spread(builder, builder.select(builder.fcmp_ordered("==", scale, zero), zero, inverse))
    halves = []
    for x in (a, b):
        wanted = builder.fptosi(builder.fadd(builder.fmul(x, inverse), constant(8.5, F32V)), I32V)
        halves.append(call(builder, "llvm.smin.v16i32", wanted, constant(15, I32V)))
    both = builder.or_(halves[0], builder.shl(halves[1], constant(4, I32V)))
    store(builder, address, builder.trunc(both, ir.VectorType(ir.IntType(8), LANES)))
    return scale


@op(types.void, types.int64, types.float32)
def write_f16(builder, address, value):
    """Store a float32 as float16, rounded to nearest even."""
    store(builder, address, builder.fptrunc(value, ir.HalfType()))
