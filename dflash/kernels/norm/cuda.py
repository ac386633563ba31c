"""The RMS norm on a GPU."""

from pathlib import Path

import numpy as np

from dflash.errors import KernelError
from dflash.kernels.arrays import GpuArray
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.gpu.launch import RowLaunch

_SOURCE = Path(__file__).with_name("rms_norm.cu")
_MOST_THREADS = 320  # threads of a block


class RmsNorm(RowLaunch):
    """An `rms_norm` on fixed arrays, for any number of rows.

    x: float32 (T, D); rows; all arrays are on the device.
    weight: float32 (D,); gain of each column.
    half: float16 (T, D), optional; receives the result for a matrix multiply, clamped to 65504; may be given as uint16.
    full: float32 (T, D), optional; receives the result as float32; may be `x`.

    ``out = x / sqrt(mean(x ** 2) + eps) * weight``. Reads ``4 * D`` bytes a row and writes ``2 * D`` or ``4 * D``. A row
    has the same bits whatever other rows are in the launch.
    """

    def __init__(self, x: GpuArray, weight: GpuArray, eps: float, *, half: GpuArray = None, full: GpuArray = None) -> None:
        width = x.shape[1]
        if half is None and full is None:
            raise KernelError("norm: half or full must be given, got neither")
        for name, array, shape in (("weight", weight, (width,)), ("half", half, x.shape), ("full", full, x.shape)):
            if array is not None and array.shape != shape:
                raise KernelError(f"norm: {name} must be {shape}, got {array.shape}")
        block = threads(width)
        self.arguments = x, weight, half, full, np.float32(eps)
        run = kernel(_SOURCE, "rms_norm", dependent=True, ROW_DIM=width, THREADS=block)
        super().__init__(run.bind(1, block, self.arguments), most=len(x))


def threads(width: int) -> int:
    """Return the threads that work on a row."""
    steps = -(-width // (1 if width % 4 else 4))
    each = -(-steps // _MOST_THREADS)
    return -(-steps // (32 * each)) * 32


class AddNorm(RowLaunch):
    """Adds a normed row to another one, on fixed arrays, for any number of rows.

    x: float32 (T, D); rows to norm; all arrays are on the device.
    weight: float32 (D,); gain of each column.
    out: float32 (T, D); rows that are added to.
    clear: leave zeros in `x`.

    ``out = (out + x / sqrt(mean(x ** 2) + eps) * weight) * scale``. Moves ``12 * D`` bytes a row, to clear ``16 * D``. A
    row has the same bits whatever other rows are in the launch.
    """

    def __init__(
        self, x: GpuArray, weight: GpuArray, eps: float, out: GpuArray, *, scale: float = 1.0, clear: bool = False
    ) -> None:
        width = x.shape[1]
        for name, array, shape in (("weight", weight, (width,)), ("out", out, x.shape)):
            if array.shape != shape:
                raise KernelError(f"add_norm: {name} must be {shape}, got {array.shape}")
        block = threads(width)
        source = _SOURCE.with_name("add_norm.cu")
        run = kernel(source, "add_norm", dependent=True, ROW_DIM=width, THREADS=block, CLEAR=int(clear))
        super().__init__(run.bind(1, block, (x, weight, np.float32(eps), scale, out)), most=len(x))
