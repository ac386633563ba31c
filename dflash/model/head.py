"""The output matrix, for the rows whose logits are wanted."""

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.arrays import empty
from dflash.kernels.formats import Matrix
from dflash.kernels.linear import Launch

Floats = NDArray[np.float32]


class Head:
    """Multiplies rows with the output matrix; its arrays grow to the most rows that were wanted.

    Parameters
    ----------
    output : Matrix (V, D)
    most : int
        Rows that will ever be wanted at a time.
    """

    def __init__(self, output: Matrix, most: int) -> None:
        self._output, self._most = output, most
        self._rows, self._logits = (empty(0, size) for size in reversed(output.shape))
        self._launch: Launch | None = None

    def rows(self, n: int) -> Floats:
        """Where `n` rows (n, D) are to be put."""
        if n > len(self._rows):
            room = max(n, min(2 * len(self._rows), self._most))
            self._rows, self._logits = (empty(room, size) for size in reversed(self._output.shape))
            self._launch = Launch(self._rows, [self._output], [self._logits], name="head")
        return self._rows[:n]

    def __call__(self, n: int) -> Floats:
        """Logits (n, V) of these rows; they last until the next call."""
        if n:
            self._launch(n)
        return self._logits[:n]
