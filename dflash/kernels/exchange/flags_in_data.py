"""Links of kernels to the other GPUs of a tensor split without signals: readers see in the data that it has arrived."""

from collections.abc import Callable, Sequence
from pathlib import Path

import cupy
import numpy as np

from dflash.kernels.arrays import GpuArray
from dflash.kernels.exchange.signals import Targets, of_targets
from dflash.kernels.gpu.jit import kernel

_SOURCE = Path(__file__).with_name("clear.cu")
_BLOCKS, _THREADS = 32, 256  # of the launch that ends a pass; a 27B clears 35 KB for one row
_EMPTY = 0xFF  # each byte of an entry that is not written; see early_read.cuh


class DataLink:
    """Inputs and outputs of one op on other GPUs, with the interface of `PeerLink`; see flags_in_data.cuh.

    clears: up to two arrays that the op clears.
    outs: up to two gathered arrays that receive the results; none if they stay on this GPU.
    sends: whether the op sends signals: never.
    """

    sends = False

    def __init__(self, links: "DataLinks", clears: Sequence[GpuArray], outs: Sequence[Targets]) -> None:
        self.macros = {"PEERS": links.n, "RANK": links.rank, "PEER_DATA": 1}
        self._links, self._clears, self._outs = links, clears, outs

    def table(self, first_row: int = 0) -> GpuArray:
        """Return the table of a launch; its first row must be that of the arrays."""
        assert first_row == 0, "all rows are in one launch"
        strides, places = of_targets(self._outs, self._links.n)
        cleared = [*self._clears, None, None][:2]
        addresses = [0 if array is None else array.data.ptr for array in cleared]
        sizes = [0 if array is None else array.strides[0] for array in cleared]
        return cupy.array(np.array([self._links.rows.data.ptr, *addresses, *sizes, *strides, *places], np.uint64))


class DataLinks:
    """Makes the links of the ops of a pass on one GPU, in the order of their launches.

    rank, n: number of this GPU, which is the current device, and of all GPUs.
    rows: int32 (1,) or longer; number of rows of the batch.

    Three other exchanges must lie between two that write the same array; flags_in_data.cuh says why.
    """

    def __init__(self, rank: int, n: int, rows: GpuArray) -> None:
        self.rank, self.n, self.rows = rank, n, rows
        self._read: Sequence[GpuArray] = ()

    def link(self, *outs: Targets, reads: Sequence[GpuArray] = ()) -> DataLink:
        """Return the link of the next op.

        reads: gathered arrays, C-contiguous, that the op reads. If there are any, it clears those that the op before it
            read.
        """
        if not reads:
            return DataLink(self, (), outs)
        made = DataLink(self, self._read, outs)
        self._read = reads
        return made

    def end(self) -> Callable[[], None]:
        """Return the launch that ends a pass: it clears what the last op has read. Call this after all links were made."""
        launches = [
            kernel(_SOURCE, "clear", dependent=True).bind(_BLOCKS, _THREADS, (_bytes(array), array.strides[0], self.rows))
            for array in self._read
        ]

        def launch() -> None:
            for each in launches:
                each()

        return launch


def clear(arrays: Sequence[GpuArray]) -> None:
    """Clear whole gathered arrays: before the first pass, and after one in which no GPU has awaited another."""
    for array in arrays:
        _bytes(array).fill(_EMPTY)


def _bytes(array: GpuArray) -> GpuArray:
    return array.reshape(-1).view(np.uint8)
