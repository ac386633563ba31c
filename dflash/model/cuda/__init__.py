"""The model on a GPU. To be imported only where there is one, since its kernels need CuPy."""
