"""Memory that prefill passes use, shared with arrays that are used at other times."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from dflash.kernels.gpu import device

_LINE = 256


class ScratchArena:
    """Allocates arrays inside given memory, and new memory where none of it is large enough.

    Arrays of different users may overlap. All users launch on one stream, and none reads its array after another user's
    launch has begun.
    """

    def __init__(self, memories: Iterable[Any]) -> None:
        self._left = [memory.reshape(-1).view(np.uint8) for memory in memories]

    def fork(self) -> "ScratchArena":
        """Return an arena over the memory that is left, for another user; arrays of the two arenas overlap."""
        return ScratchArena(self._left)

    def alloc(self, *shape: int, dtype: Any = np.float32) -> Any:
        """Return an array with undefined values."""
        n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        for i, left in enumerate(self._left):
            if n_bytes <= left.size:
                self._left[i] = left[-(-n_bytes // _LINE) * _LINE :]
                return left[:n_bytes].view(dtype).reshape(shape)
        return device.empty(*shape, dtype=dtype)
