"""What a plain copy moves: the yardstick of everything that memory bounds."""

from dflash.kernels.copy import cpu

GIBIBYTE = 1 << 30


def bandwidth(device: str, *, threads: int = 1) -> float:
    """Measure what a copy between two large arrays moves.

    Parameters
    ----------
    device : str
        ``"cpu"`` or ``"cuda"``.
    threads : int
        Cores that copy, each a part; a GPU uses all it has.

    Returns
    -------
    float
        Bytes a second, those that are read and those that are written; the median of several copies.

    Notes
    -----
    The arrays are 256 MiB each, on a GPU 2 GiB, or an eighth of the free memory if that is less.
    """
    if device == "cpu":
        return cpu.bandwidth(GIBIBYTE // 4, threads)
    from dflash.kernels.copy import cuda
    from dflash.kernels.gpu import device as gpu

    return cuda.bandwidth(min(2 * GIBIBYTE, gpu.free_memory() // 8))
