"""Waiting of one thread for others: an atomic load, and two ways to pass the time."""

import sys

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils

from dflash.kernels.cpu.simd.emit import I32, I64, op, pointer

_X86 = llvmlite.binding.get_process_triple().startswith(("x86_64", "i686"))


@op(types.int64, types.int64)
def load_acquire(builder, address):
    """Load the int64 at an address; what its writer stored before is visible afterwards."""
    return builder.load_atomic(pointer(builder, address, I64), "acquire", 8)


@op(types.void)
def pause(builder):
    """Tell the core that this thread spins; nothing on other machines than x86."""
    if _X86:
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])


@op(types.void, types.int32)
def sleep(builder, microseconds):
    """Let other threads run for some microseconds; nothing on Windows."""
    if sys.platform != "win32":
        kind = ir.FunctionType(I32, [I32])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "usleep"), [microseconds])
