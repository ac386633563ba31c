"""Exponential functions of 16 lanes, as polynomials that give the same bits on every machine."""

import numpy as np
from llvmlite import ir

from dflash.kernels.cpu.simd.emit import F32V, I32V, call, constant, f32x16, op

# exp(x) = 2**n * exp(r), n = round(x / ln 2), |r| <= ln(2) / 2; ln 2 in two parts so that x - n ln 2 is exact (Cody and
# Waite), the polynomial is the Taylor series up to r**7 / 7!, whose error is below a quarter of an ulp there.
_LOG2E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_EXP_LOWEST, _EXP_HIGHEST = -87.33654, 88.72283
_TAYLOR = [float(np.float32(1.0 / f)) for f in (5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0)]


def _exp(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    def c(value: float) -> ir.Constant:
        return constant(float(np.float32(value)), F32V)

    given = x
    x = call(builder, "llvm.minnum.v16f32", x, c(_EXP_HIGHEST))
    n = call(builder, "llvm.rint.v16f32", builder.fmul(x, c(_LOG2E)))
    minus_n = builder.fsub(constant(-0.0, F32V), n)
    r = call(builder, "llvm.fma.v16f32", minus_n, c(_LN2_HIGH), x)
    r = call(builder, "llvm.fma.v16f32", minus_n, c(_LN2_LOW), r)
    p = c(_TAYLOR[0])
    for factor in _TAYLOR[1:]:
        p = call(builder, "llvm.fma.v16f32", p, r, c(factor))
    # 2**n as 2**(n/2) * 2**(n - n/2): n = 128 has no float32 of its own
    whole = builder.fptosi(n, I32V)
    half = builder.ashr(whole, constant(1, I32V))
    rest = builder.sub(whole, half)
    for part in (half, rest):
        biased = builder.shl(builder.add(part, constant(127, I32V)), constant(23, I32V))
        p = builder.fmul(p, builder.bitcast(biased, F32V))
    tiny = builder.fcmp_ordered("<", x, c(_EXP_LOWEST))
    p = builder.select(tiny, constant(0.0, F32V), p)
    return builder.select(builder.fcmp_unordered("uno", given, given), given, p)


def _sigmoid(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    one = constant(1.0, F32V)
    return builder.fdiv(one, builder.fadd(one, _exp(builder, builder.fsub(constant(-0.0, F32V), x))))


@op(f32x16, f32x16)
def exp(builder, x):
    """Return exp(x), within 1 ulp; 0 below -87.34 (no denormals), the largest finite value above 88.72; NaN for NaN."""
    return _exp(builder, x)


@op(f32x16, f32x16)
def sigmoid(builder, x):
    """Return ``1 / (1 + exp(-x))``."""
    return _sigmoid(builder, x)


@op(f32x16, f32x16)
def silu(builder, x):
    """Return ``x / (1 + exp(-x))``."""
    one = constant(1.0, F32V)
    return builder.fdiv(x, builder.fadd(one, _exp(builder, builder.fsub(constant(-0.0, F32V), x))))


@op(f32x16, f32x16)
def gelu(builder, x):
    """Return ``x / (1 + exp(-2 u))`` with ``u = sqrt(2 / pi) (x + 0.044715 x^3)``, which is ``x (1 + tanh(u)) / 2``."""
    one, cubic, slope = (constant(float(np.float32(c)), F32V) for c in (1.0, 0.044715, -2 * (2 / np.pi) ** 0.5))
    inner = builder.fmul(x, builder.fadd(one, builder.fmul(cubic, builder.fmul(x, x))))
    return builder.fdiv(x, builder.fadd(one, _exp(builder, builder.fmul(slope, inner))))
