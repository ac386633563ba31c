"""The short convolution of a draft model's block on a GPU."""

from pathlib import Path

import numpy as np

from dflash.errors import KernelError
from dflash.kernels.arrays import GpuArray
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.gpu.launch import RowLaunch

_SOURCE = Path(__file__).with_name("block_conv.cu")


class BlockConv(RowLaunch):
    """A `block_conv` on fixed arrays, for blocks of equal size.

    x: float32 (T, D); rows of the blocks; all arrays are on the device, D is a multiple of 4.
    change: float32 (T, 2 * K * D / G)
    base: float32 (2, K, D)
    each: rows of a block.
    side: 0 before the sublayer, 1 after it.
    out: float16 (T, D), or float32 to be added to; receives the result; float16 is clamped to 65504.
    """

    def __init__(self, x: GpuArray, change: GpuArray, base: GpuArray, *, each: int, side: int, out: GpuArray) -> None:
        (n, width), taps = x.shape, base.shape[1]
        groups = change.shape[1] // (2 * taps)
        if width % 4 or not groups or width % groups or base.shape != (2, taps, width) or out.shape != x.shape:
            raise KernelError(f"block_conv: {x.shape} with taps {base.shape} and changes {change.shape} to {out.shape}")
        constants = {"MODEL_DIM": width, "GROUP_SIZE": width // groups, "TAPS": taps, "BLOCK_ROWS": each}
        made = kernel(_SOURCE, "block_conv", dependent=True, **constants, SIDE=side, ADD=int(out.itemsize == 4))
        super().__init__(made.bind(1, 256, (x, change, base, out.view(np.uint8))), -(-width // 1024), most=n)
