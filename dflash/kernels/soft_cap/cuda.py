"""`soft_cap` on a GPU."""

from pathlib import Path
from typing import Any

from dflash.kernels.gpu.jit import kernel

_SOURCE = Path(__file__).with_name("soft_cap.cu")


class SoftCap:
    """A `soft_cap` on a fixed array, for any number of rows.

    Parameters
    ----------
    x : float32 (R, V)
        Logits on the device, C-contiguous; changed in place.
    cap : float
        Bound of the absolute values; above 0.
    """

    def __init__(self, x: Any, cap: float) -> None:
        self._across = -(-x.shape[1] // 1024)
        self._run = kernel(_SOURCE, "soft_cap", dependent=True).bind(1, 256, (x, x.shape[1], cap))

    def __call__(self, n_rows: int, stream: Any = None) -> None:
        """Limit the first `n_rows` rows."""
        self._run(stream, grid=(self._across, n_rows))
