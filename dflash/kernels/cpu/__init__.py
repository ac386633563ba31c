"""The CPU runtime: numba kernels, their cache, and SIMD vectors."""
