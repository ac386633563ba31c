"""Context of a draft model on a GPU, addressed as pages of a KV cache, so that the cache's kernels can write to it."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from dflash.kernels.arrays import GpuArray
from dflash.kernels.gpu import device
from dflash.kernels.ragged import PAGE, PENDING
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.state import Rings, places


class DeviceRings(Rings):
    """Rings with extra places for rows that are written beyond the accepted text.

    reach: most positions of a sequence that the ring keeps.
    laps: length of a page list for `PENDING` rows: the pages of a ring and one more, since writes may wrap around.
    """

    def __init__(self, config: DraftConfig, slots: int, context: int) -> None:
        size = -(-(places(config, context) + PENDING) // PAGE) * PAGE
        super().__init__(config, slots, size, "f16", zeros=device.zeros)
        self.reach = size - PENDING
        self.laps = size // PAGE + 1

    def pages_of(self, slot: int, length: int) -> Any:
        """Return a page list of a ring, from its first place on."""
        n = self.size // PAGE
        return slot * n + np.arange(length, dtype=np.int32) % n

    def pages(self) -> dict[str, GpuArray]:
        """Return keys and values of all layers as pages (L, P, PAGE, KV, D)."""
        shape = len(self.k), -1, PAGE, *self.k.shape[3:]
        return {"k": self.k.reshape(shape), "v": self.v.reshape(shape)}


def rows_of(arrays: GpuArray, *, pages: GpuArray, length: GpuArray) -> SimpleNamespace:
    """Return a row layout of `arrays` with other `pages`, and `length` as the place of each sequence's first row."""
    return SimpleNamespace(
        counts=arrays.counts,
        row_starts=arrays.row_starts,
        sequence=arrays.sequence,
        length=length,
        pages=pages,
        max_pages=pages.shape[1],
    )
