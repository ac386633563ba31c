"""`soft_cap` of logits on a GPU, and tokens that are never chosen."""

from pathlib import Path

from dflash.kernels.arrays import GpuArray
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.gpu.launch import RowLaunch

_SOURCE = Path(__file__).with_name("soft_cap.cu")


class SoftCap(RowLaunch):
    """A `soft_cap` on a fixed array, for any number of rows.

    x: float32 (R, V); logits on the device, C-contiguous; changed in place.
    cap: bound of the absolute values; above 0.
    """

    def __init__(self, x: GpuArray, cap: float) -> None:
        run = kernel(_SOURCE, "soft_cap", dependent=True)
        super().__init__(run.bind(1, 256, (x, x.shape[1], cap)), -(-x.shape[1] // 1024))


class Suppress(RowLaunch):
    """Sets the logits of some tokens to minus infinity, on a fixed array, for any number of rows.

    x: float32 (R, V); logits on the device, C-contiguous; changed in place.
    ids: int32 (n,); tokens, on the device.
    """

    def __init__(self, x: GpuArray, ids: GpuArray) -> None:
        source = _SOURCE.with_name("suppress.cu")
        super().__init__(kernel(source, "suppress", dependent=True).bind(1, 128, (x, x.shape[1], ids, len(ids))))
