"""The model on a GPU. Import this package only where a GPU is present: its kernels need CuPy."""
