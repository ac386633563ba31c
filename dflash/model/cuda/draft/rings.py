"""The context of a draft on a GPU, seen as pages of a cache, so that what writes keys and values there writes them here."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from dflash.kernels.gpu import device
from dflash.kernels.ragged import PAGE, PENDING
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.state import Rings, places


class DeviceRings(Rings):
    """Rings with room for rows that are written ahead of the text.

    Parameters
    ----------
    config : DraftConfig
    slots : int
    context : int
        Positions that layers without a window are to see.

    Attributes
    ----------
    reach : int
        Most positions of a text that are kept.
    laps : int
        Pages that a sequence of writes may touch: those of a ring and one more.
    """

    def __init__(self, config: DraftConfig, slots: int, context: int) -> None:
        size = -(-(places(config, context) + PENDING) // PAGE) * PAGE
        super().__init__(config, slots, size, "f16", zeros=device.zeros)
        self.reach = size - PENDING
        self.laps = size // PAGE + 1

    def pages_of(self, slot: int) -> Any:
        """Pages of a ring, from its first place on."""
        n = self.size // PAGE
        return slot * n + np.arange(self.laps, dtype=np.int32) % n

    def pages(self) -> dict[str, Any]:
        """Keys and values of all layers as pages (L, P, PAGE, KV, D)."""
        shape = len(self.k), -1, PAGE, *self.k.shape[3:]
        return {"k": self.k.reshape(shape), "v": self.v.reshape(shape)}


def rows_of(arrays: Any, *, pages: Any, length: Any) -> SimpleNamespace:
    """What says where rows are written, with pages and the place of each sequence's first row of one's own."""
    return SimpleNamespace(
        counts=arrays.counts,
        first=arrays.first,
        sequence=arrays.sequence,
        length=length,
        pages=pages,
        max_pages=pages.shape[1],
    )
