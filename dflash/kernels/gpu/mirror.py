"""Records that are copied between pinned host memory and the GPU."""

from typing import Any

import numpy as np

from dflash.kernels.copy.cuda_transfer import Transfer
from dflash.kernels.gpu import device


class Mirror:
    """An array of records in pinned host memory and its copy on the device.

    dtype: record type; its size is a multiple of 4 bytes.
    device: int32 (n, words)
    """

    def __init__(self, n: int, dtype: Any) -> None:
        dtype = np.dtype(dtype)
        words = dtype.itemsize // 4
        self.device, self._pinned = device.zeros(n, words, dtype=np.int32), device.pinned(n, words, dtype=np.int32)
        self.host = self._pinned.view(dtype)[:, 0]
        self._addresses, self._words = (self.device.data.ptr, self._pinned.ctypes.data), words
        self._transfer = Transfer()

    def upload(self, n_rows: int, stream: Any) -> None:
        """Copy the first `n_rows` records to the device, asynchronously."""
        self._transfer(*self._addresses, n_rows * self._words, stream, from_host=True)

    def download(self, n_rows: int, stream: Any) -> None:
        """Copy the first `n_rows` records to the host, asynchronously."""
        self._transfer(*self._addresses[::-1], n_rows * self._words, stream)
