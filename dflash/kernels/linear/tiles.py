"""Building blocks of the CPU multiply: tiles of dot products, sums of lanes, calls through an address.

Lane i of an accumulator sums the products i, i + 16, i + 32 ... one after another and the lanes are added as a tree, so the
bits of a dot product do not depend on the tile that computed it.
"""

from typing import Any

from llvmlite import ir
from numba import types

from dflash.kernels.cpu.simd.emit import F32V, I32, I64, LANES, call, constant, load, loop, op, store, sum_lanes


def _tile(rows: int, tokens: int) -> Any:
    """Make the intrinsic ``tile(w, w_stride, x, x_stride, n, out)``: `rows` x `tokens` dot products of 16 * `n` float32.

    `rows` is a power of 2, strides are in bytes; the sums go to ``out[16 * token + row]``.
    """

    def emit(builder, w, w_stride, x, x_stride, n, out):
        ws_at = _lines(builder, w, w_stride, rows)
        xs_at = _lines(builder, x, x_stride, tokens)

        def body(step: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            offset = builder.shl(step, I64(6))
            ws, xs = ([load(builder, builder.add(at, offset), F32V) for at in ats] for ats in (ws_at, xs_at))
            pairs = [(wr, xt) for xt in xs for wr in ws]
            return [call(builder, "llvm.fma.v16f32", *pair, total) for pair, total in zip(pairs, sums, strict=True)]

        sums = loop(builder, n, [constant(0.0, F32V)] * (rows * tokens), body)
        t = 0
        while t < tokens:
            # as many tokens at a time as fit a vector, so that their sums share instructions
            many = min(LANES // rows, 1 << (tokens - t).bit_length() - 1)
            total = sum_lanes(builder, sums[t * rows : (t + many) * rows])
            for i in range(many):
                lanes = ir.Constant(ir.VectorType(I32, rows), list(range(i * rows, (i + 1) * rows)))
                store(builder, builder.add(out, I64(4 * LANES * (t + i))), builder.shuffle_vector(total, total, lanes))
            t += many

    emit.__name__ = f"tile_{rows}x{tokens}"
    return op(types.void, *(types.int64,) * 6)(emit)


def _lines(builder: ir.IRBuilder, base: ir.Value, stride: ir.Value, n: int) -> list[ir.Value]:
    return [builder.add(base, builder.mul(stride, I64(i))) for i in range(n)]


tile_1x1 = _tile(1, 1)
tile_4x3, tile_4x4, tile_4x5 = _tile(4, 3), _tile(4, 4), _tile(4, 5)


@op(types.void, types.int64, types.int64)
def sum_16(builder, lanes, out):
    """Sum the lanes of each of the 16 vectors at `lanes`; write the 16 sums to `out`."""
    vectors = [load(builder, builder.add(lanes, I64(4 * LANES * i)), F32V) for i in range(LANES)]
    store(builder, out, sum_lanes(builder, vectors))


def _call_address(builder: ir.IRBuilder, function: ir.Value, *args: ir.Value) -> None:
    kind = ir.FunctionType(ir.VoidType(), [I64] * len(args))
    builder.call(builder.inttoptr(function, kind.as_pointer()), args)


@op(types.void, *(types.int64,) * 6)
def call_unpack(builder, function, source, stride, n, out, out_stride):
    """Call an `unpack_function` of `formats.cpu`."""
    _call_address(builder, function, source, stride, n, out, out_stride)


@op(types.void, *(types.int64,) * 8)
def call_dot(builder, function, source, stride, x, x_stride, n, out, out_stride):
    """Call a `dot_function` of `formats.cpu`."""
    _call_address(builder, function, source, stride, x, x_stride, n, out, out_stride)
