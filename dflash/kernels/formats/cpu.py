"""Machine code for each format: unpack rows to float32, or multiply rows with one token.

Both are made from the generator of the format in `blocks.py`, so they see the same values. They are C functions, compiled
when a file first holds their format and called through their address: a kernel that multiplies several weights in one
launch need not know the formats at compile time.
"""

import functools
from typing import Any

from llvmlite import ir
from numba import cfunc, types
from numba.core import cgutils
from numba.extending import intrinsic

from dflash.kernels import numba_jit  # noqa: F401  (sets the cache folder)
from dflash.kernels.formats.blocks import FORMATS
from dflash.kernels.formats.lanes import LANES, Block
from dflash.kernels.formats.types import BLOCKS
from dflash.kernels.simd.emit import F32V, I32, I64, call, constant, load, loop, store

DOT_ROWS = 4
"""Rows that one call of a dot function multiplies."""

_CACHE_LINE, _AHEAD = 64, 8192

_NAMES = tuple(FORMATS)


def step_bytes(name: str) -> tuple[int, int]:
    """Weights and bytes that one turn of the loops below takes: a block, or 16 plain numbers."""
    block = BLOCKS[name]
    return (LANES, LANES * block.n_bytes) if block.elements == 1 else (block.elements, block.n_bytes)


def _prefetch(builder: ir.IRBuilder, address: ir.Value, n_bytes: int) -> None:
    """Ask for as many bytes further on: rows are too short a stream for the hardware to see."""
    pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, I32, I32, I32])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    for at in range(0, n_bytes, _CACHE_LINE):
        ahead = builder.inttoptr(builder.add(address, I64(_AHEAD + at)), pointer)
        builder.call(prefetch, [ahead, I32(0), I32(3), I32(1)])


@intrinsic(prefer_literal=True)
def _unpack(typing_context, kind, source, n, out):
    name = _NAMES[kind.literal_value]
    n_weights, n_bytes = step_bytes(name)

    def codegen(context, builder, signature, values):
        _, source, n, out = values

        def body(i, carried):
            at = builder.add(source, builder.mul(i, I64(n_bytes)))
            _prefetch(builder, at, n_bytes)
            to = builder.add(out, builder.mul(i, I64(4 * n_weights)))
            for j, weights in enumerate(FORMATS[name](Block(builder, at))):
                store(builder, builder.add(to, I64(4 * LANES * j)), weights.value)
            return carried

        loop(builder, n, [], body)
        return context.get_dummy_value()

    return types.void(kind, types.int64, types.int64, types.int64), codegen


@intrinsic(prefer_literal=True)
def _dot(typing_context, kind, source, stride, x, n, out):
    name = _NAMES[kind.literal_value]
    n_weights, n_bytes = step_bytes(name)

    def codegen(context, builder, signature, values):
        _, source, stride, x, n, out = values

        def body(i, sums):
            rows = []
            for r in range(DOT_ROWS):
                row = builder.add(source, builder.mul(stride, I64(r)))
                block = builder.add(row, builder.mul(i, I64(n_bytes)))
                _prefetch(builder, block, n_bytes)
                rows.append(FORMATS[name](Block(builder, block)))
            at = builder.add(x, builder.mul(i, I64(4 * n_weights)))
            for j, weights in enumerate(zip(*rows, strict=True)):
                xs = load(builder, builder.add(at, I64(4 * LANES * j)), F32V)
                sums = [call(builder, "llvm.fma.v16f32", w.value, xs, s) for w, s in zip(weights, sums, strict=True)]
            return sums

        for r, total in enumerate(loop(builder, n, [constant(0.0, F32V)] * DOT_ROWS, body)):
            store(builder, builder.add(out, I64(4 * LANES * r)), total)
        return context.get_dummy_value()

    return types.void(kind, *(types.int64,) * 5), codegen


@functools.cache
def unpack_function(name: str) -> Any:
    """C function ``(source, n_steps, out)``: unpack `n_steps` blocks (or groups of 16 numbers) to float32 at `out`."""
    kind = _NAMES.index(name)

    @cfunc(types.void(*(types.int64,) * 3), cache=True)
    def unpack(source, n, out):
        _unpack(kind, source, n, out)

    return unpack


@functools.cache
def dot_function(name: str) -> Any:
    """C function ``(source, row_bytes, x, n_steps, out)``: lane-wise sums of `DOT_ROWS` rows times one token.

    ``out`` receives 16 float32 a row, for the caller to add up; lane i holds the products i, i + 16, ... summed one after
    another, as the tiles of `simd` do.
    """
    kind = _NAMES.index(name)

    @cfunc(types.void(*(types.int64,) * 5), cache=True)
    def dot(source, stride, x, n, out):
        _dot(kind, source, stride, x, n, out)

    return dot
