"""Copies of recurrent states that a prefill pass makes where chunks of 64 positions end."""

from collections.abc import Sequence
from typing import NamedTuple

from dflash.kernels.arrays import GpuArray

MAX_COPIES = 8
"""Most copies of a pass, as in chunk_scan.cu."""


class StateCopy(NamedTuple):
    """Memory for the recurrent state of a sequence after some rows of a prefill span.

    rows: rows of the span after which the state is copied; there ends a chunk.
    length: tokens of the sequence up to there.
    arrays: float32 (L, TAPS - 1, C) tail of the convolution and (L, H, V, K) state, C-contiguous, on the device; L is the
        number of recurrent layers of the pass. Empty without such layers.
    """

    rows: int
    length: int
    arrays: Sequence[GpuArray]


class StateCopies:
    """Device table of the copies of the next pass, which all its layers read.

    words: int32; number of copies, sequence and rows of each, and the addresses of its arrays.
    """

    def __init__(self) -> None:
        from dflash.kernels.gpu.buffers import DeviceArrays

        each = (MAX_COPIES,)
        self._table, self._n = DeviceArrays(count=(1,), sequence=each, rows=each, addresses=(MAX_COPIES, 4)), 0
        self.words = self._table.words

    def set(self, copies: Sequence[tuple[int, StateCopy]]) -> None:
        """Upload the copies of the next pass: each with the index of its sequence in the pass, at most `MAX_COPIES`."""
        copies = [one for one in copies if one[1].arrays]
        if not copies and not self._n:
            return
        host, self._n = self._table.host, len(copies)
        host.count[0] = len(copies)
        for i, (sequence, copy) in enumerate(copies):
            host.sequence[i], host.rows[i] = sequence, copy.rows
            host.addresses[i].view("uint64")[:] = [array.data.ptr for array in copy.arrays]
        self._table.upload()
