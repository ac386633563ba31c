"""Numbers that are known later: a device still computes them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class LazyArray(Sequence[int]):
    """A sequence of whole numbers whose length is known now; whoever looks at the numbers waits for them.

    Parameters
    ----------
    make : callable
        Waits, and gives them.
    n : int
        How many there are.
    """

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
