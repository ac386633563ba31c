"""The arithmetic: a folder an op, with its definition, numba and CUDA side by side. Knows no model."""
