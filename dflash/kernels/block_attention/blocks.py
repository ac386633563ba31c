"""Description of a draft model's batch: the rows of each block, and the context before it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ROWS = 32
"""Largest number of rows of a block."""


class Blocks(NamedTuple):
    """The rows of one forward of a draft model: a block for each of S sequences, after its context.

    All arrays are int32 and C-contiguous. Row i of a block has position ``length + i``.

    row_starts: int32 (S + 1,); rows of sequence s are ``row_starts[s]:row_starts[s + 1]``, at most `ROWS`; ``row_starts[0]``
        is 0.
    slot: int32 (S,); ring that holds the context of the sequence.
    begin: int32 (S,); first position of the context: 0 unless the context was truncated.
    length: int32 (S,); positions ``begin .. length - 1`` are context; a ring of C places holds the last C of them.
    """

    row_starts: NDArray[np.int32]
    slot: NDArray[np.int32]
    begin: NDArray[np.int32]
    length: NDArray[np.int32]
