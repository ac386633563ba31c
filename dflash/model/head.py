"""The LM head, for the rows whose logits are requested."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.arrays import empty
from dflash.kernels.formats import Matrix
from dflash.kernels.linear import PackedLinear

Floats = NDArray[np.float32]


class Head:
    """Multiplies rows with the output matrix; its arrays grow to the largest number of rows so far.

    parts: ranges of rows of the output matrix to multiply with, whose logits stand side by side; by default all rows.
    """

    def __init__(self, output: Matrix, most: int, parts: Sequence[slice] = (slice(None),)) -> None:
        self._outputs, self._most = [output.rows(part) for part in parts], most
        self._ends = np.cumsum([0, *(part.shape[0] for part in self._outputs)]).tolist()
        self._rows, self._logits = empty(0, output.shape[1]), empty(0, self._ends[-1])
        self._launch: PackedLinear | None = None

    def rows(self, n: int) -> Floats:
        """Return the input array (n, D), for the caller to fill before the call."""
        if n > len(self._rows):
            room = max(n, min(2 * len(self._rows), self._most))
            self._rows, self._logits = (empty(room, array.shape[1]) for array in (self._rows, self._logits))
            columns = [self._logits[:, start:end] for start, end in pairwise(self._ends)]
            self._launch = PackedLinear(self._rows, self._outputs, columns, name="head")
        return self._rows[:n]

    def __call__(self, n: int) -> Floats:
        """Return the logits (n, V) of the first `n` input rows; valid until the next call."""
        if n:
            assert self._launch is not None, "`rows` was called before"
            self._launch(n)
        return self._logits[:n]
