"""Building blocks of the multiply: tiles of dot products, sums of lanes, calls through an address.

Lane i of an accumulator sums the products i, i + 16, i + 32 ... one after another and the lanes are added as a tree, so the
bits of a dot product do not depend on the tile that computed it.
"""

from typing import Any

from llvmlite import ir
from numba import types

from dflash.kernels.simd.emit import F32V, I64, LANES, call, constant, load, loop, op, store, sum_lanes


def _tile(rows: int, tokens: int) -> Any:
    """Make the intrinsic ``tile(w, w_stride, x, x_stride, n, out)``: `rows` x `tokens` dot products of 16 * `n` float32.

    Strides in bytes; the sums go to ``out[16 * token + row]``.
    """

    def emit(builder, w, w_stride, x, x_stride, n, out):
        def line(base: ir.Value, stride: ir.Value, i: int, offset: ir.Value) -> ir.Value:
            return load(builder, builder.add(builder.add(base, builder.mul(stride, I64(i))), offset), F32V)

        def body(step: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            offset = builder.shl(step, I64(6))
            ws = [line(w, w_stride, r, offset) for r in range(rows)]
            xs = [line(x, x_stride, t, offset) for t in range(tokens)]
            pairs = [(wr, xt) for xt in xs for wr in ws]
            return [call(builder, "llvm.fma.v16f32", *pair, total) for pair, total in zip(pairs, sums, strict=True)]

        sums = loop(builder, n, [constant(0.0, F32V)] * (rows * tokens), body)
        for t in range(tokens):
            total = sum_lanes(builder, sums[t * rows : (t + 1) * rows])
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
