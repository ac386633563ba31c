"""Building blocks of the CPU multiply: tiles of dot products, sums of lanes, calls through an address.

Lane i of an accumulator sums the products i, i + 16, i + 32 ... one after another and the lanes are added as a tree, so the
bits of a dot product do not depend on the tile that computed it. Where registers have eight lanes, a tile computes
lanes 0 to 7 before lanes 8 to 15, so that its sums stay in registers.
"""

from collections.abc import Callable

from llvmlite import ir
from numba import types

from dflash.kernels.cpu.simd.emit import F32, F32V, I32, I64, LANES, call, load, loop, op, prefetch, store, sum_lanes
from dflash.kernels.formats.cpu import ROWS
from dflash.kernels.formats.lanes import vector_lanes

SUMS_BYTES = (LANES + 4) * 64
"""Bytes of the lane sums of 16 rows for a token; no power of two, so that tokens do not share cache sets."""


Emit = Callable[..., None]


def float_tile(tokens: int) -> Emit:
    """Return ``emit(builder, w, w_stride, x, x_stride, n, begin, end, sums, ahead, out)``.

    It emits `ROWS` x `tokens` dot products of 16 * `n` float32; strides are in bytes. The lane sums of row r and token t at
    ``sums + 64 * r + t * SUMS_BYTES`` are begun or continued; at the end they are added, and the sums go to ``out[16 * t +
    r]``. 64 * `n` bytes at `ahead` are prefetched.
    """

    def emit(builder, w, w_stride, x, x_stride, n, begin, end, sums, ahead, out):
        ws_at = addresses(builder, w, w_stride, ROWS)
        xs_at = addresses(builder, x, x_stride, tokens)
        at = [
            builder.add(line, I64(64 * r)) for line in addresses(builder, sums, I64(SUMS_BYTES), tokens) for r in range(ROWS)
        ]
        lanes = vector_lanes()
        kind = ir.VectorType(F32, lanes)
        totals: list[ir.Value] = []
        for first in range(0, 4 * LANES, 4 * lanes):

            def body(step: ir.Value, totals: list[ir.Value], first: int = first) -> list[ir.Value]:
                line = builder.shl(step, I64(6))
                if first == 0:
                    prefetch(builder, builder.add(ahead, line))
                offset = builder.add(line, I64(first))
                xs = [load(builder, builder.add(at, offset), kind) for at in xs_at]
                after = list(totals)
                for r, row in enumerate(ws_at):  # one row's weights at a time, since eight-lane vectors have 16 registers
                    w = load(builder, builder.add(row, offset), kind)
                    for t, x in enumerate(xs):
                        i = t * ROWS + r
                        after[i] = call(builder, f"llvm.fma.v{lanes}f32", w, x, totals[i])
                return after

            places = [builder.add(one, I64(first)) for one in at]
            zeros = kind([0.0] * lanes)
            start = [builder.select(begin, zeros, load(builder, place, kind)) for place in places]
            totals = loop(builder, n, start, body)
            if lanes < LANES:
                _store_all(builder, places, totals)
        with builder.if_else(end) as (add_lanes, keep):
            with add_lanes:
                whole = totals if lanes == LANES else [load(builder, place, F32V) for place in at]
                store_sums(builder, whole, out)
            with keep:
                if lanes == LANES:
                    _store_all(builder, at, totals)

    return emit


def _store_all(builder: ir.IRBuilder, places: list[ir.Value], values: list[ir.Value]) -> None:
    for place, value in zip(places, values, strict=True):
        store(builder, place, value)


def store_sums(builder: ir.IRBuilder, vectors: list[ir.Value], out: ir.Value) -> None:
    """Store the lane sums of `ROWS` rows of each token, as many tokens at a time as fit a vector."""
    t, tokens = 0, len(vectors) // ROWS
    while t < tokens:
        many = min(LANES // ROWS, 1 << (tokens - t).bit_length() - 1)
        total = sum_lanes(builder, vectors[t * ROWS : (t + many) * ROWS])
        for i in range(many):
            lanes = ir.Constant(ir.VectorType(I32, ROWS), list(range(i * ROWS, (i + 1) * ROWS)))
            store(builder, builder.add(out, I64(4 * LANES * (t + i))), builder.shuffle_vector(total, total, lanes))
        t += many


def addresses(builder: ir.IRBuilder, base: ir.Value, stride: ir.Value, n: int) -> list[ir.Value]:
    """Return `n` addresses, `stride` bytes apart."""
    return [builder.add(base, builder.mul(stride, I64(i))) for i in range(n)]


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


@op(types.void, *(types.int64,) * 14)
def call_tile(builder, function, *values):
    """Call a `tile_function`."""
    _call_address(builder, function, *values)
