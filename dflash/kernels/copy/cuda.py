"""Copy bandwidth of the GPU."""

import statistics
from pathlib import Path

from dflash.kernels.gpu import device
from dflash.kernels.gpu.jit import kernel, warm

BLOCK_BYTES = 32768
ROUNDS = 9


def bandwidth(n_bytes: int) -> float:
    """Return the bytes read and written per second by a copy of about `n_bytes`."""
    import cupy

    blocks = n_bytes // BLOCK_BYTES
    source, target = (device.zeros(blocks * BLOCK_BYTES // 4) for _ in range(2))
    copy = kernel(Path(__file__).with_name("copy.cu"), "copy").bind(blocks, 256, (source, target))
    warm()
    took = []
    for _ in range(ROUNDS + 1):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        copy()
        end.record()
        end.synchronize()
        took.append(cupy.cuda.get_elapsed_time(start, end) / 1e3)
    del source, target
    device.release()
    return 2 * blocks * BLOCK_BYTES / statistics.median(took[1:])
