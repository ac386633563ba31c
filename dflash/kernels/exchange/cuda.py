"""All-gather of columns among the GPUs of a tensor split, inside a stream: no host takes part."""

from collections.abc import Sequence
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np

from dflash.errors import KernelError
from dflash.kernels.arrays import GpuArray, Stream
from dflash.kernels.gpu.capabilities import capabilities
from dflash.kernels.gpu.jit import kernel

_SOURCE = Path(__file__).with_name("exchange.cu")
_THREADS = 256
_AHEAD = 1 << 62  # signals, more than any launch waits for
_BLOCKS = 8  # of a multiprocessor at most, which fill it: a thread has one load in flight
_LARGEST_UNIT = 16  # bytes that a thread copies at a time


class Signals:
    """Counters by which the GPUs of a split signal each other that data has arrived.

    devices: for each GPU a context in which it is the current one.
    arrived: list of uint64 (R,); on each GPU the number of signals from each other one.
    addresses: list of uint64 (R,); on each GPU the addresses of the counters of all.
    expected: list of uint64 (1,); on each GPU the number of signals that each other one has sent before the next launch.
    """

    def __init__(self, devices: Sequence[Any]) -> None:
        n = len(devices)
        self.arrived, self.addresses, self.expected = list[Any](), list[Any](), list[Any]()
        for device in devices:
            with device:
                self.arrived.append(cupy.zeros(n, cupy.uint64))
                self.expected.append(cupy.zeros(1, cupy.uint64))
        self._devices = devices
        addresses = np.array([array.data.ptr for array in self.arrived], np.uint64)
        for device in devices:
            with device:
                self.addresses.append(cupy.array(addresses))

    def let_pass(self) -> None:
        """Let no launch wait until `restart`: for a rehearsal, in which kernels are still being loaded."""
        for device, arrived in zip(self._devices, self.arrived, strict=True):
            with device:
                arrived.fill(_AHEAD)

    def restart(self) -> None:
        """Count from zero; nothing that sends or waits may be running."""
        for device, arrived, expected in zip(self._devices, self.arrived, self.expected, strict=True):
            with device:
                arrived.fill(0)
                expected.fill(0)


class SentColumns(NamedTuple):
    """Columns that one GPU sends.

    source: array (T, C); the columns on this GPU; rows contiguous.
    targets: sequence of array (T, W) or None; the gathered array on each GPU; None where the columns are in place already.
        All have one row stride.
    ranges: columns of the targets, of equal size and at equal distances.
    """

    source: GpuArray
    targets: Sequence[Any]
    ranges: Sequence[slice]


class ColumnExchange:
    """Sends columns of some arrays to all GPUs, and waits for theirs.

    rank: number of this GPU, which is the current device.

    All GPUs must make the same launches in the same order. A launch ends when the columns of all GPUs have arrived, or with
    an error 10 seconds after it began to wait.
    """

    def __init__(self, rank: int, signals: Signals, pieces: Sequence[SentColumns]) -> None:
        sizes = [n for piece in pieces for n in (*_sizes(piece), *_addresses(piece))]
        unit = gcd(_LARGEST_UNIT, *sizes)
        self._width = sum(piece.source.shape[1] * piece.source.itemsize for piece in pieces) // unit
        self._pieces = pieces  # keeps the arrays alive
        table = np.array([_row(piece, unit) for piece in pieces], np.uint64)
        made = kernel(_SOURCE, "exchange", dependent=True, RANK=rank, PEERS=len(signals.arrived), UNIT=unit)
        arguments = signals.addresses[rank], signals.arrived[rank], signals.expected[rank]
        self._run = made.bind(1, _THREADS, (cupy.array(table), len(table), 0, *arguments))
        self._most = _BLOCKS * capabilities().processors

    def __call__(self, n_rows: int, stream: Stream = None) -> None:
        """Exchange the first `n_rows` rows."""
        self._run(stream, grid=min(-(-self._width * n_rows // _THREADS), self._most), n_rows=n_rows)


def _sizes(piece: SentColumns) -> tuple[int, int, int, int]:
    """Return the bytes of a row of the source, of a range, between ranges, and of a row of the targets."""
    source, ranges = piece.source, piece.ranges
    size, step = ranges[0].stop - ranges[0].start, ranges[-1].start - ranges[0].start
    step = step // max(len(ranges) - 1, 1)
    wanted = [slice(ranges[0].start + i * step, ranges[0].start + i * step + size) for i in range(len(ranges))]
    strides = {target.strides[0] for target in piece.targets if target is not None}
    if list(ranges) != wanted or size * len(ranges) != source.shape[1] or len(strides) != 1:
        raise KernelError(f"exchange: {source.shape[1]} columns do not fit equal ranges {list(ranges)} of one row stride")
    return source.strides[0], size * source.itemsize, step * source.itemsize, strides.pop()


def _addresses(piece: SentColumns) -> list[int]:
    """Return the addresses of the source and of the first range of each target; 0 for None."""
    first = piece.ranges[0].start * piece.source.itemsize
    targets = [0 if target is None else target.data.ptr + first for target in piece.targets]
    return [piece.source.data.ptr, *targets]


def _row(piece: SentColumns, unit: int) -> list[int]:
    """Return a piece as in exchange.cu."""
    source_stride, size, step, stride = (n // unit for n in _sizes(piece))
    source, *targets = _addresses(piece)
    return [source, source_stride, size, len(piece.ranges), step, stride, *targets]
