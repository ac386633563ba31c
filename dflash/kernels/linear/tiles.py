"""Building blocks of the multiply: tiles of dot products, sums of lanes, calls through an address.

Lane i of an accumulator sums the products i, i + 16, i + 32 ... one after another and the lanes are added as a tree, so the
bits of a dot product do not depend on the tile that computed it.
"""

from typing import Any

from llvmlite import ir
from numba import types

from dflash.kernels.simd.emit import F32V, I64, LANES, call, load, op, store, sum_lanes


def _tile(rows: int, tokens: int) -> Any:
    """Make the intrinsic ``tile(w, w_stride, x, x_stride, n, out)``: `rows` x `tokens` dot products of 16 * `n` float32.

    Strides in bytes; the sums go to ``out[16 * token + row]``.
    """

    def emit(builder, w, w_stride, x, x_stride, n, out):
        entry = builder.block
        loop, done = builder.append_basic_block("dot"), builder.append_basic_block("dot.done")
        builder.branch(loop)
        builder.position_at_end(loop)
        step = builder.phi(I64)
        sums = [builder.phi(F32V) for _ in range(rows * tokens)]
        offset = builder.shl(step, I64(6))

        def line(base: ir.Value, stride: ir.Value, i: int) -> ir.Value:
            return load(builder, builder.add(builder.add(base, builder.mul(stride, I64(i))), offset), F32V)

        ws = [line(w, w_stride, r) for r in range(rows)]
        xs = [line(x, x_stride, t) for t in range(tokens)]
        after = [
            call(builder, "llvm.fma.v16f32", ws[r], xs[t], sums[t * rows + r]) for t in range(tokens) for r in range(rows)
        ]
        following = builder.add(step, I64(1))
        step.add_incoming(I64(0), entry)
        step.add_incoming(following, loop)
        for total, last in zip(sums, after, strict=True):
            total.add_incoming(ir.Constant(F32V, [0.0] * LANES), entry)
            total.add_incoming(last, loop)
        builder.cbranch(builder.icmp_signed("<", following, n), loop, done)
        builder.position_at_end(done)
        for t in range(tokens):
            total = sum_lanes(builder, after[t * rows : (t + 1) * rows])
            store(builder, builder.add(out, I64(4 * LANES * t)), total)

    emit.__name__ = f"tile_{rows}x{tokens}"
    return op(types.void, *(types.int64,) * 6)(emit)


tile_1x1 = _tile(1, 1)
tile_4x1, tile_4x2, tile_4x3, tile_4x4 = _tile(4, 1), _tile(4, 2), _tile(4, 3), _tile(4, 4)


@op(types.void, types.int64, types.int64)
def sum_16(builder, lanes, out):
    """Add up the lanes of 16 vectors at `lanes`; 16 sums go to `out`."""
    vectors = [load(builder, builder.add(lanes, I64(4 * LANES * i)), F32V) for i in range(LANES)]
    store(builder, out, sum_lanes(builder, vectors))


def _call_address(builder: ir.IRBuilder, function: ir.Value, *args: ir.Value) -> None:
    kind = ir.FunctionType(ir.VoidType(), [I64] * len(args))
    builder.call(builder.inttoptr(function, kind.as_pointer()), args)


@op(types.void, *(types.int64,) * 4)
def call_unpack(builder, function, source, n, out):
    """Call an `unpack_function` of `formats.cpu`."""
    _call_address(builder, function, source, n, out)


@op(types.void, *(types.int64,) * 6)
def call_dot(builder, function, source, stride, x, n, out):
    """Call a `dot_function` of `formats.cpu`."""
    _call_address(builder, function, source, stride, x, n, out)


@op(types.int64, types.int64, types.int64)
def take(builder, counter, n):
    """Add `n` to the int64 at `counter` in one indivisible step and return what was there."""
    pointer = builder.inttoptr(counter, I64.as_pointer())
    return builder.atomic_rmw("add", pointer, n, "monotonic")
