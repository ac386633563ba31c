"""Rows of features on a GPU, wherever they are."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.arrays import GpuArray
from dflash.kernels.gpu import device
from dflash.kernels.gpu.buffers import DeviceArrays
from dflash.kernels.tree.cuda import GatherRows

_IN_FLIGHT = 16
"""Uploads in flight: with few, the host would wait for prompts that the target still prefills."""


class FeatureRows:
    """Hidden states of some positions of a sequence, in order, as rows of arrays on the device.

    addresses: uint64 (N,); addresses of the rows.
    owners: the arrays, which must live as long.
    """

    __slots__ = ("addresses", "owners")

    def __init__(self, addresses: NDArray[np.uint64], owners: tuple[GpuArray, ...]) -> None:
        self.addresses, self.owners = addresses, owners

    @classmethod
    def of(cls, array: Any) -> "FeatureRows":
        """Return all rows of an array float32 (N, D)."""
        return array if isinstance(array, FeatureRows) else cls.parts_of(array, [slice(0, len(array))])[0]

    @classmethod
    def parts_of(cls, array: GpuArray, parts: Sequence[slice | Sequence[int]]) -> list["FeatureRows"]:
        """Return some rows of an array float32 (N, D) for each part; slices have a start and a stop."""
        numbers = list[int]()
        ends = [0]
        for part in parts:
            numbers.extend(range(part.start, part.stop) if isinstance(part, slice) else part)
            ends.append(len(numbers))
        pointer = array.data.ptr if numbers else 0
        addresses = np.array(numbers, np.uint64) * np.uint64(array.strides[0]) + np.uint64(pointer)
        return [cls(addresses[start:stop], (array,)) for start, stop in pairwise(ends)]

    @classmethod
    def joined(cls, parts: Sequence["FeatureRows"]) -> "FeatureRows":
        """Return rows one after the other."""
        parts = [part for part in parts if len(part)]
        if len(parts) < 2:
            return parts[0] if parts else NO_ROWS
        owners = tuple(owner for part in parts for owner in part.owners)
        return cls(np.concatenate([part.addresses for part in parts]), owners)

    def __len__(self) -> int:
        return len(self.addresses)

    def __getitem__(self, rows: slice) -> "FeatureRows":
        return FeatureRows(self.addresses[rows], self.owners)


NO_ROWS = FeatureRows(np.zeros(0, np.uint64), ())


class Gatherer:
    """Gathers rows of features into arrays (N, D), at most `most` at a time."""

    def __init__(self, width: int, most: int) -> None:
        self._width, self._most, self._arrays = width, most, DeviceArrays(_IN_FLIGHT, addresses=(2 * most,))
        self._gather = GatherRows(self._arrays.addresses.view(np.uint64), width)

    def __call__(self, parts: Sequence[FeatureRows], out: GpuArray) -> None:
        """Copy rows, one part after the other, to the first rows of `out`."""
        addresses = FeatureRows.joined(parts).addresses
        for start in range(0, len(addresses), self._most):
            some = addresses[start : start + self._most]
            self._arrays.host.addresses.view(np.uint64)[: len(some)] = some
            self._arrays.upload(n_words=2 * len(some))
            self._gather(out[start : start + len(some)])

    def copies(self, parts: Sequence[FeatureRows]) -> list[FeatureRows]:
        """Return copies of rows, in one new array."""
        ends = list(accumulate(map(len, parts), initial=0))
        out = device.empty(ends[-1], self._width)
        self(parts, out)
        return FeatureRows.parts_of(out, [slice(*each) for each in pairwise(ends)])
