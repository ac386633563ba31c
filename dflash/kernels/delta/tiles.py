"""The two steps of the delta rule, read and update, on 16 value rows of a state at a time.

A state row holds the K float32 of one value channel. `lanes` is a tuple of K / 16 zeros: its length, a part of its type,
is the number of vectors in a row, so that all loops over K are unrolled. Addresses are int64. A dot product over K has one
order everywhere: the even vectors and the odd vectors of a row are each summed lane by lane, the two sums are added, and the
lanes are folded as `simd.hsum` does. Hence one token, a chain, a tree and a prompt give the same bits.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dflash.kernels.cpu.simd.emit import F32, F32V, I32, I64, LANES, call, f32x16, fold, load, prefetch, spread, store

ROWS = LANES
"""Value rows of a tile; lane r of a vector belongs to row r."""

_LINE = 4 * LANES


def _fma(builder, a, b, c):
    return call(builder, "llvm.fma.v16f32", a, b, c)


def _line(builder, address, index):
    return load(builder, builder.add(address, I64(_LINE * index)), F32V)


def _row(builder, address, n):
    return [_line(builder, address, i) for i in range(n)]


def _products(builder, row, *others):
    """Return the lane sums of the products of a row with each of some others: of even vectors, of odd vectors, of both."""
    sums = [[builder.fmul(x, y) for x, y in zip(row[:2], other, strict=False)] for other in others]
    for i in range(2, len(row)):
        for own, other in zip(sums, others, strict=True):
            own[i % 2] = _fma(builder, row[i], other[i], own[i % 2])
    return [builder.fadd(*own) if len(own) == 2 else own[0] for own in sums]


# The levels of `simd.hsum` on two vectors: lanes of the pair to add, and their distance to the other summands
_PARTS = range(0, LANES, 4)
_HALVES = [*range(8), *range(16, 24)], 8
_QUARTERS = [*range(4), *range(8, 12), *range(16, 20), *range(24, 28)], 4
_PAIRS = [part + i for part in _PARTS for i in (0, 1, 16, 17)], 2
_SINGLES = [part + i for part in _PARTS for i in (0, 2, 16, 18)], 1


def _fold(builder, a, b, level):
    """Apply one level of `simd.hsum` to two vectors, packed into one: add lanes `low` and those at a distance."""
    low, distance = level
    kind = ir.VectorType(I32, LANES)
    masks = (ir.Constant(kind, low), ir.Constant(kind, [lane + distance for lane in low]))
    return builder.fadd(*(builder.shuffle_vector(a, b, mask) for mask in masks))


@intrinsic
def dot(typing_context, lanes, x, y):
    """Return the dot product of two rows of K float32."""

    def codegen(context, builder, signature, args):
        return fold(builder, *_products(builder, *(_row(builder, row, lanes.count) for row in args[1:])), builder.fadd)

    return types.float32(lanes, types.int64, types.int64), codegen


@intrinsic
def read(typing_context, lanes, rows, key, query, ahead):
    """Return ``(rows @ key, rows @ query)`` of 16 value rows, and prefetch the 16 rows at `ahead` if that is not 0.

    These reads need no memory, while an update of rows that are not in a cache waits for it.
    """

    def codegen(context, builder, signature, args):
        n, (_, rows, key, query, ahead) = lanes.count, args
        by = _row(builder, key, n), _row(builder, query, n)
        quarters = [cgutils.alloca_once(builder, ir.ArrayType(F32V, 4)) for _ in by]
        # rows i, i + 4, i + 8, i + 12 at a time: sums of more rows would spill registers
        with cgutils.for_range(builder, I64(4)) as loop:
            offset = builder.mul(loop.index, I64(_LINE * n))
            first, wanted = builder.add(rows, offset), builder.add(ahead, builder.mul(offset, I64(4)))
            with builder.if_then(builder.icmp_signed("!=", ahead, I64(0))):
                for line in range(0, 4 * _LINE * n, _LINE):
                    prefetch(builder, builder.add(wanted, I64(line)))
            group = [_products(builder, _row(builder, builder.add(first, I64(4 * _LINE * n * i)), n), *by) for i in range(4)]
            for (a, b, c, d), quarter in zip(zip(*group, strict=True), quarters, strict=True):
                low, high = _fold(builder, a, b, _HALVES), _fold(builder, c, d, _HALVES)
                total = _fold(builder, low, high, _QUARTERS)
                builder.store(total, builder.gep(quarter, [I64(0), loop.index]))
        sums = []
        for quarter in quarters:
            a, b, c, d = (builder.load(builder.gep(quarter, [I64(0), I64(i)])) for i in range(4))
            sums.append(_fold(builder, _fold(builder, a, b, _PAIRS), _fold(builder, c, d, _PAIRS), _SINGLES))
        return cgutils.pack_array(builder, sums)

    return types.UniTuple(f32x16, 2)(lanes, *(types.int64,) * 4), codegen


@intrinsic
def update(typing_context, lanes, source, target, decay, u, key):
    """Compute ``target = decay * source + outer(u, key)`` of 16 value rows; `target` may be `source`."""

    def codegen(context, builder, signature, args):
        n = lanes.count
        _, source, target, decay, u, key = args
        k, factor = _row(builder, key, n), spread(builder, decay)
        lane = cgutils.alloca_once(builder, F32V)
        builder.store(u, lane)
        lane = builder.bitcast(lane, F32.as_pointer())
        with cgutils.for_range(builder, I64(ROWS)) as loop:
            offset = builder.mul(loop.index, I64(_LINE * n))
            source_row, target_row = builder.add(source, offset), builder.add(target, offset)
            amount = spread(builder, builder.load(builder.gep(lane, [loop.index])))
            for i in range(n):
                kept = builder.fmul(factor, _line(builder, source_row, i))
                store(builder, builder.add(target_row, I64(_LINE * i)), _fma(builder, amount, k[i], kept))
        return context.get_dummy_value()

    arguments = (lanes, types.int64, types.int64, types.float32, f32x16, types.int64)
    return types.void(*arguments), codegen
