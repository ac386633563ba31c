"""Memory that prompts need while they are read, lent to what lives at other times."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from dflash.kernels.gpu import device

_LINE = 256


class ScratchArena:
    """Hands out arrays that lie in memory of somebody else, and in their own where that does not do.

    All of it is used by launches of one stream, and what one use leaves there nobody reads after another has begun.

    Parameters
    ----------
    memories : iterable of array
        On the device; may be of any type.
    """

    def __init__(self, memories: Iterable[Any]) -> None:
        self._left = [memory.reshape(-1).view(np.uint8) for memory in memories]

    def fork(self) -> "ScratchArena":
        """What is left, for somebody else: what both are lent overlaps."""
        return ScratchArena(self._left)

    def alloc(self, *shape: int, dtype: Any = np.float32) -> Any:
        """An array, its values being what lay there."""
        n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        for i, left in enumerate(self._left):
            if n_bytes <= left.size:
                self._left[i] = left[-(-n_bytes // _LINE) * _LINE :]
                return left[:n_bytes].view(dtype).reshape(shape)
        return device.empty(*shape, dtype=dtype)
