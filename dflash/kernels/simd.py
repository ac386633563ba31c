"""Vectors of 16 float32 lanes for numba kernels.

numba compiles scalars and leaves vectors to LLVM's loop vectoriser, which may not reorder a floating-point sum. Here the
lanes are explicit: a kernel says in which lane every product lands, so a sum has one order and its bits are the same on
every machine, for any number of rows. LLVM lowers a 16-lane operation to one AVX-512 instruction, two AVX ones or four
NEON ones.

Addresses are plain int64 (``array.ctypes.data``); loads and stores need no alignment. Nothing here checks bounds.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 16

_BIT, _I32, _I64, _F32 = ir.IntType(1), ir.IntType(32), ir.IntType(64), ir.FloatType()
_F32V, _I32V = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES)


class Vector(types.Type):
    """A numba type for 16 lanes that live in registers."""

    def __init__(self, name: str, llvm: ir.Type) -> None:
        self.llvm = llvm
        super().__init__(name=name)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Vector) -> None:
        super().__init__(dmm, fe_type, fe_type.llvm)


f32x16 = Vector("f32x16", _F32V)
i32x16 = Vector("i32x16", _I32V)
mask16 = Vector("mask16", ir.VectorType(_BIT, LANES))


def _const(value: float | int, vector: ir.VectorType) -> ir.Constant:
    return ir.Constant(vector, [value] * LANES)


def _op(result: types.Type, *params: types.Type):
    """Turn ``emit(builder, *values) -> value`` into an intrinsic of the given signature."""

    def wrap(emit: Any) -> Any:
        def typed(typing_context, *args):
            def codegen(context, builder, signature, values):
                out = emit(builder, *values)
                return context.get_dummy_value() if out is None else out

            return result(*params), codegen

        names = ", ".join(f"a{i}" for i in range(len(params)))
        scope: dict[str, Any] = {"typed": typed}
        # numba reads the arity of an intrinsic from its Python signature
        exec(f"def {emit.__name__}(typing_context{', ' if names else ''}{names}):\n return typed(typing_context)", scope)
        function = scope[emit.__name__]
        function.__module__, function.__doc__ = __name__, emit.__doc__
        return intrinsic(function)

    return wrap


def _pointer(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    return builder.inttoptr(address, kind.as_pointer())


def _load(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    value = builder.load(_pointer(builder, address, kind))
    value.align = 1
    return value


def _store(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
    builder.store(value, _pointer(builder, address, value.type)).align = 1


def _call(builder: ir.IRBuilder, name: str, *args: ir.Value) -> ir.Value:
    kind = args[0].type
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [a.type for a in args]), name)
    return builder.call(function, args)


def _splat(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    undefined = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    first = builder.insert_element(undefined, value, _I32(0))
    return builder.shuffle_vector(first, undefined, _const(0, _I32V))


def _halve(builder: ir.IRBuilder, value: ir.Value, combine: Any) -> ir.Value:
    """Fold lane i with lane i + n/2 until one is left: 16, 8, 4, 2, 1."""
    n = LANES
    while n > 1:
        n //= 2
        nothing = ir.Constant(value.type, ir.Undefined)
        low, high = (
            builder.shuffle_vector(value, nothing, ir.Constant(ir.VectorType(_I32, n), list(range(i, i + n))))
            for i in (0, n)
        )
        value = combine(low, high)
    return builder.extract_element(value, _I32(0))


@_op(types.int32, types.int64)
def read_u8(builder, address):
    """One byte, 0 to 255."""
    return builder.zext(_load(builder, address, ir.IntType(8)), _I32)


@_op(types.int32, types.int64)
def read_i8(builder, address):
    """One signed byte."""
    return builder.sext(_load(builder, address, ir.IntType(8)), _I32)


@_op(types.int32, types.int64)
def read_u16(builder, address):
    """Two bytes, little endian."""
    return builder.zext(_load(builder, address, ir.IntType(16)), _I32)


@_op(types.int32, types.int64)
def read_i32(builder, address):
    """Four bytes, little endian."""
    return _load(builder, address, _I32)


@_op(types.float32, types.int64)
def read_f16(builder, address):
    """An IEEE half, subnormals included, as float32."""
    return builder.fpext(_load(builder, address, ir.HalfType()), _F32)


@_op(types.float32, types.int64)
def read_f32(builder, address):
    """A float32."""
    return _load(builder, address, _F32)


@_op(types.void, types.int64, types.float32)
def write_f32(builder, address, value):
    """Store a float32."""
    _store(builder, address, value)


@_op(types.float32, types.int32)
def f32_from_bits(builder, bits):
    """The float32 of these 32 bits."""
    return builder.bitcast(bits, _F32)


# 16 lanes from and to memory -------------------------------------------------------------------------------------------


@_op(f32x16, types.int64)
def load_f32(builder, address):
    """16 float32."""
    return _load(builder, address, _F32V)


@_op(f32x16, types.int64)
def load_f16(builder, address):
    """16 IEEE halves as float32."""
    return builder.fpext(_load(builder, address, ir.VectorType(ir.HalfType(), LANES)), _F32V)


@_op(f32x16, types.int64)
def load_bf16(builder, address):
    """16 bfloat16 as float32."""
    wide = builder.zext(_load(builder, address, ir.VectorType(ir.IntType(16), LANES)), _I32V)
    return builder.bitcast(builder.shl(wide, _const(16, _I32V)), _F32V)


@_op(i32x16, types.int64)
def load_u8(builder, address):
    """16 bytes, 0 to 255, as int32."""
    return builder.zext(_load(builder, address, ir.VectorType(ir.IntType(8), LANES)), _I32V)


@_op(i32x16, types.int64)
def load_i8(builder, address):
    """16 signed bytes as int32."""
    return builder.sext(_load(builder, address, ir.VectorType(ir.IntType(8), LANES)), _I32V)


@_op(i32x16, types.int64)
def load_i32(builder, address):
    """16 int32."""
    return _load(builder, address, _I32V)


@_op(types.void, types.int64, f32x16)
def store_f32(builder, address, value):
    """Store 16 float32."""
    _store(builder, address, value)


@_op(types.void, types.int64, f32x16)
def store_f16(builder, address, value):
    """Store 16 lanes rounded to IEEE half, to nearest even."""
    _store(builder, address, builder.fptrunc(value, ir.VectorType(ir.HalfType(), LANES)))


@_op(f32x16, types.float32)
def splat(builder, value):
    """`value` in every lane."""
    return _splat(builder, value)


@_op(i32x16, types.int32)
def splat_i32(builder, value):
    """`value` in every lane."""
    return _splat(builder, value)


@_op(f32x16)
def zeros(builder):
    """Zero in every lane."""
    return _const(0.0, _F32V)


@_op(f32x16, f32x16, f32x16)
def add(builder, a, b):
    """``a + b``."""
    return builder.fadd(a, b)


@_op(f32x16, f32x16, f32x16)
def sub(builder, a, b):
    """``a - b``."""
    return builder.fsub(a, b)


@_op(f32x16, f32x16, f32x16)
def mul(builder, a, b):
    """``a * b``."""
    return builder.fmul(a, b)


@_op(f32x16, f32x16, f32x16)
def div(builder, a, b):
    """``a / b``."""
    return builder.fdiv(a, b)


@_op(f32x16, f32x16, f32x16, f32x16)
def fma(builder, a, b, c):
    """``a * b + c``, rounded once."""
    return _call(builder, "llvm.fma.v16f32", a, b, c)


@_op(types.float32, types.float32, types.float32, types.float32)
def fma1(builder, a, b, c):
    """``a * b + c`` of scalars, rounded once."""
    return _call(builder, "llvm.fma.f32", a, b, c)


@_op(f32x16, f32x16, f32x16)
def maximum(builder, a, b):
    """The larger of two lanes; the other one where one is NaN."""
    return _call(builder, "llvm.maxnum.v16f32", a, b)


@_op(i32x16, i32x16, i32x16)
def and_i32(builder, a, b):
    """Bitwise and."""
    return builder.and_(a, b)


@_op(i32x16, i32x16, i32x16)
def or_i32(builder, a, b):
    """Bitwise or."""
    return builder.or_(a, b)


@_op(i32x16, i32x16, i32x16)
def add_i32(builder, a, b):
    """``a + b`` of integers."""
    return builder.add(a, b)


@_op(i32x16, i32x16, types.int32)
def shr_i32(builder, a, n):
    """Shift right by `n`, zeros coming in."""
    return builder.lshr(a, _splat(builder, n))


@_op(i32x16, i32x16, types.int32)
def shl_i32(builder, a, n):
    """Shift left by `n`."""
    return builder.shl(a, _splat(builder, n))


@_op(f32x16, i32x16)
def to_f32(builder, a):
    """Signed integers as float32."""
    return builder.sitofp(a, _F32V)


@_op(mask16, f32x16, f32x16)
def less(builder, a, b):
    """Where ``a < b``."""
    return builder.fcmp_ordered("<", a, b)


@_op(f32x16, mask16, f32x16, f32x16)
def select(builder, mask, a, b):
    """`a` where the mask is set, `b` elsewhere."""
    return builder.select(mask, a, b)


@_op(types.float32, f32x16)
def hsum(builder, a):
    """Sum of the lanes, as a tree: i with i + 8, then i + 4, i + 2, i + 1."""
    return _halve(builder, a, builder.fadd)


@_op(types.float32, f32x16)
def hmax(builder, a):
    """Largest lane."""

    def larger(low: ir.Value, high: ir.Value) -> ir.Value:
        return _call(builder, f"llvm.maxnum.v{low.type.count}f32", low, high)

    return _halve(builder, a, larger)


# exp(x) = 2**n * exp(r), n = round(x / ln 2), |r| <= ln(2) / 2; ln 2 in two parts so that x - n ln 2 is exact (Cody and
# Waite), the polynomial is the Taylor series up to r**7 / 7!, whose error is below a quarter of an ulp there.
_LOG2E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_EXP_LOWEST, _EXP_HIGHEST = -87.33654, 88.72283
_TAYLOR = [float(np.float32(1.0 / f)) for f in (5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0)]


def _exp(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    def c(value: float) -> ir.Constant:
        return _const(float(np.float32(value)), _F32V)

    given = x
    x = _call(builder, "llvm.minnum.v16f32", x, c(_EXP_HIGHEST))
    n = _call(builder, "llvm.rint.v16f32", builder.fmul(x, c(_LOG2E)))
    minus_n = builder.fsub(_const(-0.0, _F32V), n)
    r = _call(builder, "llvm.fma.v16f32", minus_n, c(_LN2_HIGH), x)
    r = _call(builder, "llvm.fma.v16f32", minus_n, c(_LN2_LOW), r)
    p = c(_TAYLOR[0])
    for factor in _TAYLOR[1:]:
        p = _call(builder, "llvm.fma.v16f32", p, r, c(factor))
    # 2**n as 2**(n/2) * 2**(n - n/2): n = 128 has no float32 of its own
    whole = builder.fptosi(n, _I32V)
    half = builder.ashr(whole, _const(1, _I32V))
    rest = builder.sub(whole, half)
    for part in (half, rest):
        biased = builder.shl(builder.add(part, _const(127, _I32V)), _const(23, _I32V))
        p = builder.fmul(p, builder.bitcast(biased, _F32V))
    tiny = builder.fcmp_ordered("<", x, c(_EXP_LOWEST))
    p = builder.select(tiny, _const(0.0, _F32V), p)
    return builder.select(builder.fcmp_unordered("uno", given, given), given, p)


@_op(f32x16, f32x16)
def exp(builder, x):
    """E to the x, within 1 ulp; 0 below -87.34 (denormal results are flushed), largest finite above 88.72; NaN of NaN."""
    return _exp(builder, x)


def _sigmoid(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    one = _const(1.0, _F32V)
    return builder.fdiv(one, builder.fadd(one, _exp(builder, builder.fsub(_const(-0.0, _F32V), x))))


@_op(f32x16, f32x16)
def sigmoid(builder, x):
    """``1 / (1 + exp(-x))``."""
    return _sigmoid(builder, x)


@_op(f32x16, f32x16)
def silu(builder, x):
    """``x / (1 + exp(-x))``."""
    one = _const(1.0, _F32V)
    return builder.fdiv(x, builder.fadd(one, _exp(builder, builder.fsub(_const(-0.0, _F32V), x))))


def _dot_tile(rows: int, tokens: int) -> Any:
    """Make the intrinsic that adds `rows` x `tokens` dot products to accumulators in memory.

    ``tile(w, w_stride, x, x_stride, n, acc)``: `n` steps of 16 float32; strides in bytes; ``acc`` holds 16 float32 for
    each (row, token), row-major. Lane i of an accumulator sums the products i, i + 16, i + 32 ... one after another, so
    its bits do not depend on the shape of the tile.
    """

    def emit(builder, w, w_stride, x, x_stride, n, acc):
        entry = builder.block
        loop, done = builder.append_basic_block("dot"), builder.append_basic_block("dot.done")

        def slot(r: int, t: int) -> ir.Value:
            return builder.add(acc, _I64(4 * LANES * (r * tokens + t)))

        start = [[_load(builder, slot(r, t), _F32V) for t in range(tokens)] for r in range(rows)]
        builder.branch(loop)
        builder.position_at_end(loop)
        step = builder.phi(_I64)
        step.add_incoming(_I64(0), entry)
        sums = [[builder.phi(_F32V) for _ in range(tokens)] for _ in range(rows)]
        offset = builder.shl(step, _I64(6))

        def line(base: ir.Value, stride: ir.Value, i: int) -> ir.Value:
            return _load(builder, builder.add(builder.add(base, builder.mul(stride, _I64(i))), offset), _F32V)

        xs = [line(x, x_stride, t) for t in range(tokens)]
        after = []
        for r in range(rows):
            wr = line(w, w_stride, r)
            after.append([_call(builder, "llvm.fma.v16f32", wr, xs[t], sums[r][t]) for t in range(tokens)])
        following = builder.add(step, _I64(1))
        step.add_incoming(following, loop)
        for r in range(rows):
            for t in range(tokens):
                sums[r][t].add_incoming(start[r][t], entry)
                sums[r][t].add_incoming(after[r][t], loop)
        builder.cbranch(builder.icmp_signed("<", following, n), loop, done)
        builder.position_at_end(done)
        for r in range(rows):
            for t in range(tokens):
                _store(builder, slot(r, t), after[r][t])

    emit.__name__ = f"dot_{rows}x{tokens}"
    return _op(types.void, *(types.int64,) * 6)(emit)


dot_1x1, dot_1x4 = _dot_tile(1, 1), _dot_tile(1, 4)
dot_4x1, dot_4x2, dot_4x4 = _dot_tile(4, 1), _dot_tile(4, 2), _dot_tile(4, 4)
dot_8x1, dot_8x2 = _dot_tile(8, 1), _dot_tile(8, 2)
