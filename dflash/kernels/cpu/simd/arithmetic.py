"""Arithmetic on 16 lanes, and reductions."""

from llvmlite import ir
from numba import types

from dflash.kernels.cpu.simd.emit import F32V, call, constant, f32x16, fold, mask16, op, spread


@op(f32x16, types.float32)
def splat(builder, value):
    """Return `value` in every lane."""
    return spread(builder, value)


@op(f32x16)
def zeros(builder):
    """Return zero in every lane."""
    return constant(0.0, F32V)


@op(f32x16, f32x16, f32x16)
def add(builder, a, b):
    """Return ``a + b``."""
    return builder.fadd(a, b)


@op(f32x16, f32x16, f32x16)
def sub(builder, a, b):
    """Return ``a - b``."""
    return builder.fsub(a, b)


@op(f32x16, f32x16, f32x16)
def mul(builder, a, b):
    """Return ``a * b``."""
    return builder.fmul(a, b)


@op(f32x16, f32x16, f32x16)
def div(builder, a, b):
    """Return ``a / b``."""
    return builder.fdiv(a, b)


@op(f32x16, f32x16, f32x16, f32x16)
def fma(builder, a, b, c):
    """Return ``a * b + c``, rounded once."""
    return call(builder, "llvm.fma.v16f32", a, b, c)


@op(types.float32, types.float32, types.float32, types.float32)
def fma1(builder, a, b, c):
    """Return ``a * b + c`` of scalars, rounded once."""
    return call(builder, "llvm.fma.f32", a, b, c)


@op(f32x16, f32x16, f32x16)
def maximum(builder, a, b):
    """Return the larger of two lanes; if one is NaN, the other."""
    return call(builder, "llvm.maxnum.v16f32", a, b)


@op(mask16, f32x16, f32x16)
def less(builder, a, b):
    """Return the mask of lanes where ``a < b``."""
    return builder.fcmp_ordered("<", a, b)


@op(f32x16, mask16, f32x16, f32x16)
def select(builder, mask, a, b):
    """Return `a` where the mask is set, `b` elsewhere."""
    return builder.select(mask, a, b)


@op(types.float32, f32x16)
def hsum(builder, a):
    """Return the sum of the lanes, as a tree: i with i + 8, then i + 4, i + 2, i + 1."""
    return fold(builder, a, builder.fadd)


@op(types.float32, f32x16)
def hmax(builder, a):
    """Return the largest lane."""

    def larger(low: ir.Value, high: ir.Value) -> ir.Value:
        return call(builder, f"llvm.maxnum.v{low.type.count}f32", low, high)

    return fold(builder, a, larger)
