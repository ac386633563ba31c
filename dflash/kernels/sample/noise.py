"""Gumbel noise that is a function of (seed, position, token): a counter-based generator on 16 lanes.

Token t at position p draws word ``t // 16 % 4`` of Philox4x32-10 with the counter ``(t // 64 * 16 + t % 16, p, 0, 0)`` and
the seed as key. So 64 tokens in a row take four words of 16 counters, in order, and any token can be drawn alone. A word w
stands for the uniform number ``v = (w + 1/2) / 2**32``, and the noise is ``-log(-log(1 - v))``: from -3.14 to 22.88, never
infinite.

References
----------
Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", SC11.
"""

from llvmlite import ir
from numba import types

from dflash.kernels.sample.log import float_const, log_of_parts, split
from dflash.kernels.simd import _F32V, _I32, _I32V, _I64, LANES, _const, _op, _splat, _store, f32x16, i32x16

BLOCK = 4 * LANES
"""Tokens that share their 16 counters."""

HIGHEST = 22.88
"""No noise is above this."""

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_I64V = ir.VectorType(_I64, LANES)
_QUARTER = 1 << 30


def _multiply(builder: ir.IRBuilder, a: ir.Value, factor: int) -> tuple[ir.Value, ir.Value]:
    """High and low half of a 32 x 32 bit product."""
    wide = builder.mul(builder.zext(a, _I64V), _const(factor, _I64V))
    return builder.trunc(builder.lshr(wide, _const(32, _I64V)), _I32V), builder.trunc(wide, _I32V)


def _philox(builder: ir.IRBuilder, counters: ir.Value, position: ir.Value, seed: ir.Value) -> list[ir.Value]:
    """Four words for each of 16 counters."""
    keys = [builder.trunc(seed, _I32), builder.trunc(builder.lshr(seed, _I64(32)), _I32)]
    keys = [_splat(builder, key) for key in keys]
    zero = _const(0, _I32V)
    c = [counters, _splat(builder, builder.trunc(position, _I32)), zero, zero]
    for _ in range(_ROUNDS):
        (high0, low0), (high1, low1) = (_multiply(builder, c[2 * i], _MULTIPLIERS[i]) for i in range(2))
        c = [
            builder.xor(builder.xor(high1, c[1]), keys[0]),
            low1,
            builder.xor(builder.xor(high0, c[3]), keys[1]),
            low0,
        ]
        keys = [builder.add(key, _const(step, _I32V)) for key, step in zip(keys, _KEY_STEPS, strict=True)]
    return c


def _uniform(builder: ir.IRBuilder, words: ir.Value) -> ir.Value:
    return builder.fmul(builder.fadd(builder.uitofp(words, _F32V), float_const(0.5)), float_const(2.0**-32))


def _gumbel(builder: ir.IRBuilder, words: ir.Value) -> ir.Value:
    # below a quarter, 1 - v would lose the digits of v that make the largest noise; above it, v would those of 1 - v
    small = builder.icmp_unsigned("<", words, _const(_QUARTER, _I32V))
    minus_v = builder.fsub(_const(-0.0, _F32V), _uniform(builder, words))
    f, e = split(builder, _uniform(builder, builder.not_(words)))
    f = builder.select(small, minus_v, f)
    e = builder.select(small, _const(0.0, _F32V), e)
    exponential = builder.fsub(_const(-0.0, _F32V), log_of_parts(builder, f, e))
    return builder.fsub(_const(-0.0, _F32V), log_of_parts(builder, *split(builder, exponential)))


@_op(types.void, types.int64, types.int64, types.int64, types.int64)
def gumbel_block(builder, seed, position, block, out):
    """Store the noise of the 64 tokens from ``64 * block`` on."""
    first = builder.trunc(builder.shl(block, _I64(4)), _I32)
    counters = builder.add(_splat(builder, first), ir.Constant(_I32V, list(range(LANES))))
    for i, words in enumerate(_philox(builder, counters, position, seed)):
        _store(builder, builder.add(out, _I64(4 * LANES * i)), _gumbel(builder, words))


@_op(i32x16, types.int64, types.int64, i32x16)
def words_of(builder, seed, position, ids):
    """The word of each of any 16 tokens."""
    block = builder.shl(builder.lshr(ids, _const(6, _I32V)), _const(4, _I32V))
    counters = builder.add(block, builder.and_(ids, _const(LANES - 1, _I32V)))
    which = builder.and_(builder.lshr(ids, _const(4, _I32V)), _const(3, _I32V))
    words = _philox(builder, counters, position, seed)
    chosen = words[0]
    for i in range(1, 4):
        chosen = builder.select(builder.icmp_unsigned("==", which, _const(i, _I32V)), words[i], chosen)
    return chosen


@_op(f32x16, i32x16)
def gumbel_of(builder, words):
    """The noise that 16 words stand for."""
    return _gumbel(builder, words)
