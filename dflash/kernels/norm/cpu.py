"""RMS norms with numba. The sum of squares has a fixed order: four vector accumulators in turn, then the tail."""

import numpy as np
from numba import prange

from dflash.kernels.cpu import simd
from dflash.kernels.cpu.jit import inline, kernel

_LINE = 4 * simd.LANES
_ROWS = 8  # rows, or heads, of a task


@inline
def inverse_rms(x, width, eps):
    """Return ``1 / sqrt(mean(x ** 2) + eps)`` of `width` float32 at address `x`."""
    a, b, c, d = simd.zeros(), simd.zeros(), simd.zeros(), simd.zeros()
    n = width // simd.LANES
    for i in range(0, n - 3, 4):
        at = x + _LINE * i
        va, vb = simd.load_f32(at), simd.load_f32(at + _LINE)
        vc, vd = simd.load_f32(at + 2 * _LINE), simd.load_f32(at + 3 * _LINE)
        a, b, c, d = simd.fma(va, va, a), simd.fma(vb, vb, b), simd.fma(vc, vc, c), simd.fma(vd, vd, d)
    for i in range(n // 4 * 4, n):
        va = simd.load_f32(x + _LINE * i)
        a = simd.fma(va, va, a)
    total = simd.hsum(simd.add(simd.add(a, b), simd.add(c, d)))
    for i in range(n * simd.LANES, width):
        value = simd.read_f32(x + 4 * i)
        total = simd.fma1(value, value, total)
    return np.float32(1) / np.sqrt(total / np.float32(width) + np.float32(eps))


@inline
def norm_row(x, weight, width, eps, out):
    """Compute `rms_norm` of one row; arrays are given by address."""
    factor = inverse_rms(x, width, eps)
    factors = simd.splat(factor)
    n = width // simd.LANES
    for at in range(0, _LINE * n, _LINE):
        simd.store_f32(out + at, simd.mul(simd.mul(simd.load_f32(x + at), factors), simd.load_f32(weight + at)))
    for at in range(_LINE * n, 4 * width, 4):
        simd.write_f32(out + at, simd.read_f32(x + at) * factor * simd.read_f32(weight + at))


@inline
def gated_norm_row(x, z, weight, width, eps, out):
    """Compute `gated_rms_norm` of one head of one row; arrays are given by address."""
    factor = inverse_rms(x, width, eps)
    factors = simd.splat(factor)
    n = width // simd.LANES
    for at in range(0, _LINE * n, _LINE):
        normed = simd.mul(simd.mul(simd.load_f32(x + at), factors), simd.load_f32(weight + at))
        simd.store_f32(out + at, simd.mul(normed, simd.silu(simd.load_f32(z + at))))
    for at in range(_LINE * n, 4 * width, 4):
        gate = simd.hmax(simd.silu(simd.splat(simd.read_f32(z + at))))
        simd.write_f32(out + at, simd.read_f32(x + at) * factor * simd.read_f32(weight + at) * gate)


@inline
def _norm_rows(x, weight, eps, out, start, stop):
    width = x.shape[1]
    for row in range(start, stop):
        at = 4 * width * row
        norm_row(x.ctypes.data + at, weight.ctypes.data, width, eps, out.ctypes.data + at)


@inline
def _gated_norm_rows(x, z, weight, eps, out, start, stop):
    width = weight.shape[0]
    for row in range(start, stop):
        at = 4 * width * row
        gated_norm_row(x.ctypes.data + at, z.ctypes.data + at, weight.ctypes.data, width, eps, out.ctypes.data + at)


@inline
def rms_norm(x, weight, eps, out):
    """Run on one thread: for few rows a parallel launch costs more than the work."""
    _norm_rows(x, weight, eps, out, 0, x.shape[0])


@kernel
def rms_norm_parallel(x, weight, eps, out):
    """Run on all threads, `_ROWS` rows a task."""
    n = x.shape[0]
    for task in prange((n + _ROWS - 1) // _ROWS):
        _norm_rows(x, weight, eps, out, _ROWS * task, min(_ROWS * task + _ROWS, n))


@inline
def gated_rms_norm(x, z, weight, eps, out):
    """Run on one thread."""
    _gated_norm_rows(x, z, weight, eps, out, 0, z.size // weight.shape[0])


@kernel
def gated_rms_norm_parallel(x, z, weight, eps, out):
    """Run on all threads, `_ROWS` heads a task."""
    n = z.size // weight.shape[0]
    for task in prange((n + _ROWS - 1) // _ROWS):
        _gated_norm_rows(x, z, weight, eps, out, _ROWS * task, min(_ROWS * task + _ROWS, n))
