"""Integers that a device is still computing."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class LazyArray(Sequence[int]):
    """A sequence of `n` integers; `make` waits for the device and returns them when the first is read."""

    def __init__(self, make: Callable[[], Any], n: int) -> None:
        self._make, self._n = make, n
        self._made: list[int] | None = None

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: Any) -> Any:
        if self._made is None:
            self._made = np.asarray(self._make(), np.int32).tolist()
        return self._made[i]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self[:], dtype or np.int32)
