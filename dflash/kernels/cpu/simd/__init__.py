"""Vectors of 16 float32 lanes for numba kernels.

numba compiles scalar code and relies on LLVM's loop vectoriser, which may not reorder floating-point sums. Here lanes are
explicit: a kernel determines the lane of every product. So a sum has a fixed order, and the same bits on every machine and
for any number of rows. LLVM lowers a 16-lane operation to one AVX-512, two AVX or four NEON instructions.

Addresses are plain int64 (``array.ctypes.data``); loads and stores need no alignment. Nothing here checks bounds.
"""

from dflash.kernels.cpu.simd.arithmetic import add, div, fma, fma1, hmax, hsum, less, maximum, mul, select, splat, sub, zeros
from dflash.kernels.cpu.simd.emit import LANES, f32x16, i32x16
from dflash.kernels.cpu.simd.functions import exp, gelu, sigmoid, silu
from dflash.kernels.cpu.simd.memory import (
    fetch_add,
    load_f16,
    load_f32,
    load_i32,
    prefetch,
    read_f32,
    store_f16,
    store_f32,
    write_f32,
)
from dflash.kernels.cpu.simd.quantize import store_q4_0, store_q8_0, write_f16
from dflash.kernels.cpu.simd.waiting import load_acquire, pause, sleep

__all__ = [
    "LANES",
    "add",
    "div",
    "exp",
    "f32x16",
    "fetch_add",
    "fma",
    "fma1",
    "gelu",
    "hmax",
    "hsum",
    "i32x16",
    "less",
    "load_acquire",
    "load_f16",
    "load_f32",
    "load_i32",
    "maximum",
    "mul",
    "pause",
    "prefetch",
    "read_f32",
    "select",
    "sigmoid",
    "silu",
    "sleep",
    "splat",
    "store_f16",
    "store_f32",
    "store_q4_0",
    "store_q8_0",
    "sub",
    "write_f16",
    "write_f32",
    "zeros",
]
