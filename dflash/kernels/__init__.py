"""Kernels: one folder per op, with its NumPy definition, numba and CUDA side by side. Nothing here depends on a model."""
