"""Arrays at addresses."""

import numpy as np
from llvmlite import ir
from numba import carray, types

from dflash.kernels.cpu.jit import inline
from dflash.kernels.cpu.simd.emit import I64, op


@op(types.voidptr, types.int64)
def pointer(builder, address):
    """Return an address as a pointer for `numba.carray`."""
    return builder.inttoptr(address, ir.IntType(8).as_pointer())


@inline
def floats(address, shape):
    """Return the float32 array of a shape at an address."""
    return carray(pointer(address), shape, np.float32)


@inline
def ints(address, shape):
    """Return the int32 array of a shape at an address."""
    return carray(pointer(address), shape, np.int32)


@inline
def longs(address, shape):
    """Return the int64 array of a shape at an address."""
    return carray(pointer(address), shape, np.int64)


@op(types.void, *(types.int64,) * 4)
def call_task(builder, function, stage, task, batch):
    """Call a function ``(stage, task, batch)`` by its address."""
    kind = ir.FunctionType(ir.VoidType(), [I64] * 3)
    builder.call(builder.inttoptr(function, kind.as_pointer()), [stage, task, batch])
