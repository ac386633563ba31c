"""Building blocks of the multiply: tiles of dot products, sums of lanes, calls through an address.

Lane i of an accumulator sums the products i, i + 16, i + 32 ... one after another and the lanes are added as a tree, so the
bits of a dot product do not depend on the tile that computed it.
"""

from typing import Any

from llvmlite import ir
from numba import types

from dflash.kernels.simd import _F32V, _I32, _I64, LANES, _call, _load, _op, _store


def _sum_lanes(builder: ir.IRBuilder, vectors: list[ir.Value]) -> ir.Value:
    """Sums of 1, 2, 4 ... vectors side by side: fold i with i + 8, then i + 4, i + 2, i + 1, sharing instructions."""
    width = LANES
    while width > 1:
        half = width // 2
        step = 2 if len(vectors) % 2 == 0 else 1
        folded = []
        for pair in (vectors[i : i + step] for i in range(0, len(vectors), step)):
            groups = sum(v.type.count for v in pair) // width
            low = [g * width + i for g in range(groups) for i in range(half)]
            parts = []
            for order in (low, [i + half for i in low]):
                mask = ir.Constant(ir.VectorType(_I32, len(order)), order)
                parts.append(builder.shuffle_vector(pair[0], pair[-1], mask))
            folded.append(builder.fadd(*parts))
        vectors, width = folded, half
    return vectors[0]


def _tile(rows: int, tokens: int) -> Any:
    """Make the intrinsic ``tile(w, w_stride, x, x_stride, n, out)``: `rows` x `tokens` dot products of 16 * `n` float32.

    Strides in bytes; the sums go to ``out[16 * token + row]``.
    """

    def emit(builder, w, w_stride, x, x_stride, n, out):
        entry = builder.block
        loop, done = builder.append_basic_block("dot"), builder.append_basic_block("dot.done")
        builder.branch(loop)
        builder.position_at_end(loop)
        step = builder.phi(_I64)
        sums = [builder.phi(_F32V) for _ in range(rows * tokens)]
        offset = builder.shl(step, _I64(6))

        def line(base: ir.Value, stride: ir.Value, i: int) -> ir.Value:
            return _load(builder, builder.add(builder.add(base, builder.mul(stride, _I64(i))), offset), _F32V)

        ws = [line(w, w_stride, r) for r in range(rows)]
        xs = [line(x, x_stride, t) for t in range(tokens)]
        after = [
            _call(builder, "llvm.fma.v16f32", ws[r], xs[t], sums[t * rows + r]) for t in range(tokens) for r in range(rows)
        ]
        following = builder.add(step, _I64(1))
        step.add_incoming(_I64(0), entry)
        step.add_incoming(following, loop)
        for total, last in zip(sums, after, strict=True):
            total.add_incoming(ir.Constant(_F32V, [0.0] * LANES), entry)
            total.add_incoming(last, loop)
        builder.cbranch(builder.icmp_signed("<", following, n), loop, done)
        builder.position_at_end(done)
        for t in range(tokens):
            total = _sum_lanes(builder, after[t * rows : (t + 1) * rows])
            _store(builder, builder.add(out, _I64(4 * LANES * t)), total)

    emit.__name__ = f"tile_{rows}x{tokens}"
    return _op(types.void, *(types.int64,) * 6)(emit)


tile_1x1 = _tile(1, 1)
tile_4x1, tile_4x2, tile_4x3, tile_4x4 = _tile(4, 1), _tile(4, 2), _tile(4, 3), _tile(4, 4)


@_op(types.void, types.int64, types.int64)
def sum_16(builder, lanes, out):
    """Add up the lanes of 16 vectors at `lanes`; 16 sums go to `out`."""
    vectors = [_load(builder, builder.add(lanes, _I64(4 * LANES * i)), _F32V) for i in range(LANES)]
    _store(builder, out, _sum_lanes(builder, vectors))


def _call_address(builder: ir.IRBuilder, function: ir.Value, *args: ir.Value) -> None:
    kind = ir.FunctionType(ir.VoidType(), [_I64] * len(args))
    builder.call(builder.inttoptr(function, kind.as_pointer()), args)


@_op(types.void, *(types.int64,) * 4)
def call_unpack(builder, function, source, n, out):
    """Call an `unpack_function` of `formats.cpu`."""
    _call_address(builder, function, source, n, out)


@_op(types.void, *(types.int64,) * 6)
def call_dot(builder, function, source, stride, x, n, out):
    """Call a `dot_function` of `formats.cpu`."""
    _call_address(builder, function, source, stride, x, n, out)


@_op(types.int64, types.int64, types.int64)
def take(builder, counter, n):
    """Add `n` to the int64 at `counter` in one indivisible step and return what was there."""
    pointer = builder.inttoptr(counter, _I64.as_pointer())
    return builder.atomic_rmw("add", pointer, n, "monotonic")
