"""Gumbel noise as a function of (seed, position, token), from a counter-based generator on 16 lanes.

Token t at position p takes word ``t // 16 % 4`` of Philox4x32-10 with the counter ``(t // 64 * 16 + t % 16, p, 0, 0)`` and
the seed as key. So 64 consecutive tokens take four words of 16 counters, in order, and any token can be computed alone. A
word w is the uniform number ``v = (w + 1/2) / 2**32``, and the noise is ``-log(-log(1 - v))``: from -3.14 to 22.88, never
infinite.

References
----------
Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", SC11.
"""

from llvmlite import ir
from numba import types

from dflash.kernels.cpu.simd.emit import F32V, I32, I32V, I64, LANES, constant, f32x16, i32x16, op, spread, store
from dflash.kernels.sample.log import float_const, log_of_parts, split

BLOCK = 4 * LANES
"""Tokens whose noise comes from the same 16 counters."""

HIGHEST = 22.88
"""Upper bound of the noise."""

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_I64V = ir.VectorType(I64, LANES)
_QUARTER = 1 << 30


def _multiply(builder: ir.IRBuilder, a: ir.Value, factor: int) -> tuple[ir.Value, ir.Value]:
    """Return the high and the low half of a 32 x 32 bit product."""
    wide = builder.mul(builder.zext(a, _I64V), constant(factor, _I64V))
    return builder.trunc(builder.lshr(wide, constant(32, _I64V)), I32V), builder.trunc(wide, I32V)


def _philox(builder: ir.IRBuilder, counters: ir.Value, position: ir.Value, seed: ir.Value) -> list[ir.Value]:
    """Return four random words for each of 16 counters."""
    keys = [builder.trunc(seed, I32), builder.trunc(builder.lshr(seed, I64(32)), I32)]
    keys = [spread(builder, key) for key in keys]
    zero = constant(0, I32V)
    c = [counters, spread(builder, builder.trunc(position, I32)), zero, zero]
    for _ in range(_ROUNDS):
        (high0, low0), (high1, low1) = (_multiply(builder, c[2 * i], _MULTIPLIERS[i]) for i in range(2))
        c = [builder.xor(builder.xor(high1, c[1]), keys[0]), low1, builder.xor(builder.xor(high0, c[3]), keys[1]), low0]
        keys = [builder.add(key, constant(step, I32V)) for key, step in zip(keys, _KEY_STEPS, strict=True)]
    return c


def _uniform(builder: ir.IRBuilder, words: ir.Value) -> ir.Value:
    return builder.fmul(builder.fadd(builder.uitofp(words, F32V), float_const(0.5)), float_const(2.0**-32))


def _gumbel(builder: ir.IRBuilder, words: ir.Value) -> ir.Value:
    # below a quarter, 1 - v would lose digits of v that determine the largest noise; above it, v would lose those of 1 - v
    small = builder.icmp_unsigned("<", words, constant(_QUARTER, I32V))
    minus_v = builder.fsub(constant(-0.0, F32V), _uniform(builder, words))
    f, e = split(builder, _uniform(builder, builder.not_(words)))
    f = builder.select(small, minus_v, f)
    e = builder.select(small, constant(0.0, F32V), e)
    exponential = builder.fsub(constant(-0.0, F32V), log_of_parts(builder, f, e))
    return builder.fsub(constant(-0.0, F32V), log_of_parts(builder, *split(builder, exponential)))


@op(types.void, types.int64, types.int64, types.int64, types.int64)
def gumbel_block(builder, seed, position, block, out):
    """Store the noise of the 64 tokens from ``64 * block`` on."""
    first = builder.trunc(builder.shl(block, I64(4)), I32)
    counters = builder.add(spread(builder, first), ir.Constant(I32V, list(range(LANES))))
    for i, words in enumerate(_philox(builder, counters, position, seed)):
        store(builder, builder.add(out, I64(4 * LANES * i)), _gumbel(builder, words))


@op(i32x16, types.int64, types.int64, i32x16)
def words_of(builder, seed, position, ids):
    """Return the random word of each of 16 arbitrary tokens."""
    block = builder.shl(builder.lshr(ids, constant(6, I32V)), constant(4, I32V))
    counters = builder.add(block, builder.and_(ids, constant(LANES - 1, I32V)))
    which = builder.and_(builder.lshr(ids, constant(4, I32V)), constant(3, I32V))
    words = _philox(builder, counters, position, seed)
    chosen = words[0]
    for i in range(1, 4):
        chosen = builder.select(builder.icmp_unsigned("==", which, constant(i, I32V)), words[i], chosen)
    return chosen


@op(f32x16, i32x16)
def gumbel_of(builder, words):
    """Convert 16 random words to noise."""
    return _gumbel(builder, words)
