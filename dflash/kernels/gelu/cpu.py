"""GELU gate in numba, on one thread: a layer's part of an embedding is a few hundred values of a token."""

from dflash.kernels.cpu import simd
from dflash.kernels.cpu.jit import inline


@inline
def gelu_gate(gate, values, out):
    """See the package."""
    n, width = gate.shape
    for row in range(n):
        x = gate.ctypes.data + 4 * width * row
        y = values.ctypes.data + values.strides[0] * row
        z = out.ctypes.data + 4 * width * row
        for i in range(0, 4 * width, 64):
            simd.store_f32(z + i, simd.mul(simd.gelu(simd.load_f32(x + i)), simd.load_f32(y + i)))
