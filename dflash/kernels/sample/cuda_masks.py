"""Masks of allowed tokens on a GPU."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.arrays import Stream
from dflash.kernels.gpu.mirror import Mirror

_CAPACITY = 4  # masks of the first allocation, 31 KiB each for 248,320 tokens; most steps have fewer constrained rows


class DeviceMasks:
    """Copies the masks of a step's rows to the device."""

    def __init__(self, vocab: int) -> None:
        self._record = np.dtype([("words", np.uint32, (-(-vocab // 32),))])
        self._mirror: Mirror | None = None

    def upload(self, masks: Mapping[int, NDArray[np.uint32]], stream: Stream) -> dict[int, int]:
        """Copy the masks of some rows, asynchronously; return the device address of each row's mask.

        The previous masks must no longer be in use.
        """
        if not masks:
            return {}
        if self._mirror is None or len(masks) > len(self._mirror.host):
            self._mirror = Mirror(max(2 * len(masks), _CAPACITY), self._record)
        for i, words in enumerate(masks.values()):
            self._mirror.host["words"][i] = words
        self._mirror.upload(len(masks), stream)
        return {row: self._mirror.device[i].data.ptr for i, row in enumerate(masks)}
