"""Tiles of attention that read a float16, float32, q8_0 or q4_0 cache in place.

A cache is an array (pages, PAGE, heads, stored elements); *place* p is row ``p % PAGE`` of page ``p // PAGE``. A tile takes
an array of places, so a path through a tree costs as much as a chain. The order of a sum does not depend on the tile's
shape: a score is `hsum` of 16 lanes that run through the width, a blend adds position after position.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dflash.kernels.cpu.simd.emit import F32, F32V, I32, I64, LANES, call, constant, load, loop, spread, store, sum_lanes
from dflash.kernels.kv_types import BLOCK, SCALES
from dflash.kernels.ragged import PAGE

_I8, _F16 = ir.IntType(8), ir.HalfType()
_F16V = ir.VectorType(_F16, LANES)
_STORED = {types.uint16: _F16, types.float32: F32, types.int8: _I8, types.uint8: _I8}
"""LLVM type of a cache's elements by their NumPy type."""


class _CacheRows:
    """Reads lines of 16 floats of a head, from value `first` on, from the rows of a cache."""

    def __init__(
        self, context: Any, builder: ir.IRBuilder, cache: types.Array, value: ir.Value, places: ir.Value, head: ir.Value
    ) -> None:
        self.builder, self.kind, self.places = builder, _STORED[cache.dtype], places
        self.size = 1 if self.kind is _I8 else 2 if self.kind is _F16 else 4
        self.halved = cache.dtype == types.uint8
        array = context.make_array(cache)(context, builder, value)
        heads, stored = (builder.extract_value(array.shape, axis) for axis in (2, 3))
        head_bytes = builder.mul(stored, I64(self.size))
        self.stride = builder.mul(heads, head_bytes)
        self.base = builder.add(builder.ptrtoint(array.data, I64), builder.mul(head, head_bytes))
        self.scales = builder.sub(stored, I64(SCALES))

    def address(self, index: ir.Value) -> ir.Value:
        """Return the address of the head at the place at `index`."""
        b = self.builder
        place = load(b, b.add(self.places, b.shl(index, I64(3))), I64)
        return b.add(self.base, b.mul(place, self.stride))

    def line(self, row: ir.Value, first: ir.Value, number: ir.Value) -> ir.Value:
        """Return line `number` after value `first` of the head at an address."""
        b, first = self.builder, self.builder.add(first, self.builder.mul(number, I64(LANES)))
        if self.halved:
            at, half = b.udiv(first, I64(BLOCK)), b.and_(b.udiv(first, I64(LANES)), I64(1))
            value = load(b, b.add(row, b.mul(at, I64(BLOCK // 2))), ir.VectorType(_I8, LANES))
            shift = spread(b, b.trunc(b.shl(half, I64(2)), _I8))
            value = b.and_(b.lshr(value, shift), constant(15, ir.VectorType(_I8, LANES)))
            value = b.sub(value, constant(8, ir.VectorType(_I8, LANES)))
        else:
            value = load(b, b.add(row, b.mul(first, I64(self.size))), ir.VectorType(self.kind, LANES))
        if self.kind is F32:
            return value
        if self.kind is _I8:
            block = b.udiv(first, I64(BLOCK))
            scale = load(b, b.add(b.add(row, self.scales), b.shl(block, I64(1))), _F16)
            value = b.fmul(b.sitofp(value, F32V), spread(b, b.fpext(scale, F32)))
            value = b.fptrunc(value, _F16V)
        return b.fpext(value, F32V)


def _scores(keys: int, queries: int) -> Any:
    """Make the intrinsic for the dot products of `keys` places with `queries` queries, 16 in all.

    ``tile(cache, places, head, q, stride, steps, out)``: addresses of int64 places, of float32 queries `stride` bytes apart,
    of scores (queries, PAGE); a head of the cache; `steps` lines of 16.
    """

    @intrinsic
    def tile(typing_context, cache, places, head, q, stride, steps, out):
        def codegen(context, builder, signature, args):
            _, places, head, q, stride, steps, out = args
            rows = _CacheRows(context, builder, signature.args[0], args[0], places, head)
            k = [rows.address(I64(i)) for i in range(keys)]
            q = [builder.add(q, builder.mul(stride, I64(j))) for j in range(queries)]

            def body(step: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                here = builder.mul(step, I64(4 * LANES))
                qs = [load(builder, builder.add(a, here), F32V) for a in q]
                ks = [rows.line(a, I64(0), step) for a in k]
                pairs = [(qv, kv) for qv in qs for kv in ks]
                return [call(builder, "llvm.fma.v16f32", qv, kv, s) for (qv, kv), s in zip(pairs, sums, strict=True)]

            total = sum_lanes(builder, loop(builder, steps, [constant(0.0, F32V)] * LANES, body))
            for j in range(queries):
                part = ir.Constant(ir.VectorType(I32, keys), list(range(j * keys, (j + 1) * keys)))
                store(builder, builder.add(out, I64(4 * PAGE * j)), builder.shuffle_vector(total, total, part))
            return context.get_dummy_value()

        return types.void(cache, *(types.int64,) * 6), codegen

    return tile


def _blend(queries: int, lines: int) -> Any:
    """Make the intrinsic that sums rows of a cache, `lines` of 16 floats each, with `queries` sets of weights.

    ``tile(cache, places, head, first, n, weights, out, stride)``: a head of the cache, from value `first` on; n >= 1 places;
    addresses of weights (queries, PAGE) and of the sums so far, `stride` bytes apart.
    """

    @intrinsic
    def tile(typing_context, cache, places, head, first, n, weights, out, stride):
        def codegen(context, builder, signature, args):
            _, places, head, first, n, weights, out, stride = args
            rows = _CacheRows(context, builder, signature.args[0], args[0], places, head)
            slots = [
                builder.add(builder.add(out, builder.mul(stride, I64(j))), I64(4 * LANES * i))
                for j in range(queries)
                for i in range(lines)
            ]

            def body(step: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                row = rows.address(step)
                vs = [rows.line(row, first, I64(i)) for i in range(lines)]
                here = builder.add(weights, builder.shl(step, I64(2)))
                ws = [spread(builder, load(builder, builder.add(here, I64(4 * PAGE * j)), F32)) for j in range(queries)]
                pairs = [(w, v) for w in ws for v in vs]
                return [call(builder, "llvm.fma.v16f32", w, v, s) for (w, v), s in zip(pairs, sums, strict=True)]

            for slot, total in zip(slots, loop(builder, n, [load(builder, s, F32V) for s in slots], body), strict=True):
                store(builder, slot, total)
            return context.get_dummy_value()

        return types.void(cache, *(types.int64,) * 7), codegen

    return tile


scores_4x4, scores_8x2, scores_16x1 = _scores(4, 4), _scores(8, 2), _scores(16, 1)
blend_4x4, blend_2x8, blend_1x8 = _blend(4, 4), _blend(2, 8), _blend(1, 8)
blend_4x1, blend_2x1, blend_1x1 = _blend(4, 1), _blend(2, 1), _blend(1, 1)
