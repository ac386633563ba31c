"""Loads and stores of scalars and 16 lanes; addresses need no alignment."""

from llvmlite import ir
from numba import types

from dflash.kernels.cpu.simd import emit
from dflash.kernels.cpu.simd.emit import F32, F32V, I32V, I64, LANES, f32x16, i32x16, load, op, pointer, store


@op(types.float32, types.int64)
def read_f32(builder, address):
    """Load a float32."""
    return load(builder, address, F32)


@op(types.void, types.int64, types.float32)
def write_f32(builder, address, value):
    """Store a float32."""
    store(builder, address, value)


@op(f32x16, types.int64)
def load_f32(builder, address):
    """Load 16 float32."""
    return load(builder, address, F32V)


@op(f32x16, types.int64)
def load_f16(builder, address):
    """Load 16 float16 as float32."""
    return builder.fpext(load(builder, address, ir.VectorType(ir.HalfType(), LANES)), F32V)


@op(i32x16, types.int64)
def load_i32(builder, address):
    """Load 16 int32."""
    return load(builder, address, I32V)


@op(types.void, types.int64, f32x16)
def store_f32(builder, address, value):
    """Store 16 float32."""
    store(builder, address, value)


@op(types.void, types.int64, f32x16)
def store_f16(builder, address, value):
    """Store 16 lanes as float16, rounded to nearest even."""
    store(builder, address, builder.fptrunc(value, ir.VectorType(ir.HalfType(), LANES)))


@op(types.int64, types.int64, types.int64)
def fetch_add(builder, address, n):
    """Atomically add `n` to the int64 at an address and return the old value; sequentially consistent."""
    return builder.atomic_rmw("add", pointer(builder, address, I64), n, "seq_cst")


@op(types.void, types.int64)
def prefetch(builder, address):
    """Prefetch the cache line at an address; any address is allowed."""
    emit.prefetch(builder, address)
