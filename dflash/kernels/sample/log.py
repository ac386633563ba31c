"""The natural logarithm on 16 lanes, for numba kernels.

``log(m * 2**e) = e ln 2 + log(1 + f)``, ``f = m - 1`` with m from sqrt(1/2) to sqrt(2); ln 2 is in two parts so that
``e * high`` is exact, and the polynomial is that of Moshier's Cephes library (``logf``). Only multiplications, additions and
fused multiply-adds in a fixed order: the bits are the same on every machine.
"""

import numpy as np
from llvmlite import ir

from dflash.kernels.cpu.simd.emit import F32V, I32V, call, constant, f32x16, op

_POLYNOMIAL = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_SQRT_HALF_BITS = 0x3F3504F3
_MANTISSA = 0x007FFFFF


def float_const(value: float) -> ir.Constant:
    """Return `value`, rounded to float32, in every lane."""
    return constant(float(np.float32(value)), F32V)


def split(builder: ir.IRBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return f and e, both float32, with ``x = (1 + f) * 2**e`` for positive normal x."""
    # subtracting the bits of sqrt(1/2) makes the exponent field change at sqrt(1/2) instead of at 1
    shifted = builder.sub(builder.bitcast(x, I32V), constant(_SQRT_HALF_BITS, I32V))
    exponent = builder.ashr(shifted, constant(23, I32V))
    mantissa = builder.add(builder.and_(shifted, constant(_MANTISSA, I32V)), constant(_SQRT_HALF_BITS, I32V))
    return builder.fsub(builder.bitcast(mantissa, F32V), float_const(1.0)), builder.sitofp(exponent, F32V)


def log_of_parts(builder: ir.IRBuilder, f: ir.Value, e: ir.Value) -> ir.Value:
    """Return ``log(1 + f) + e ln 2`` for f from -0.293 to 0.415."""
    p = float_const(_POLYNOMIAL[0])
    for factor in _POLYNOMIAL[1:]:
        p = call(builder, "llvm.fma.v16f32", p, f, float_const(factor))
    square = builder.fmul(f, f)
    low = builder.fmul(builder.fmul(p, f), square)
    low = call(builder, "llvm.fma.v16f32", e, float_const(_LN2_LOW), low)
    low = call(builder, "llvm.fma.v16f32", float_const(-0.5), square, low)
    return call(builder, "llvm.fma.v16f32", e, float_const(_LN2_HIGH), builder.fadd(f, low))


@op(f32x16, f32x16)
def log(builder, x):
    """Return the natural logarithm of positive normal numbers, within 1 ulp; close to 1 the error is below 1e-8."""
    return log_of_parts(builder, *split(builder, x))
