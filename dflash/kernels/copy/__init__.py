"""Bandwidth of a plain copy, the reference for memory-bound kernels."""

from dflash.kernels.copy import cpu

GIBIBYTE = 1 << 30


def bandwidth(device: str, *, threads: int = 1) -> float:
    """Measure the memory bandwidth of a copy between two large arrays.

    Parameters
    ----------
    device : str
        ``"cpu"`` or ``"cuda"``.
    threads : int
        CPU threads that copy a part each; ignored on a GPU.

    Returns
    -------
    float
        Bytes read and written per second, the median of several copies.

    Notes
    -----
    Each array has 256 MiB; on a GPU 2 GiB, or an eighth of the free memory if that is less.
    """
    if device == "cpu":
        return cpu.bandwidth(GIBIBYTE // 4, threads)
    from dflash.kernels.copy import cuda
    from dflash.kernels.gpu import device as gpu

    return cuda.bandwidth(min(2 * GIBIBYTE, gpu.free_memory() // 8))
