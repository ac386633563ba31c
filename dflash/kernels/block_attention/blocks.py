"""Which rows of a draft belong to which sequence, and where they stand."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ROWS = 32
"""Most rows that a block may have."""


class Blocks(NamedTuple):
    """The rows of one forward of a draft model: a block for each of S sequences, after its context.

    All arrays are int32 and C-contiguous. Row i of a block stands at position ``length + i``.

    Parameters
    ----------
    first : int32 (S + 1,)
        Rows of sequence s are ``first[s]:first[s + 1]``, at most `ROWS`; ``first[0]`` is 0.
    slot : int32 (S,)
        Whose ring holds the context.
    begin : int32 (S,)
        The first position that the ring may hold: 0 unless the context was cut.
    length : int32 (S,)
        Positions ``begin .. length - 1`` are context, of which a ring of C places holds the last C.
    """

    first: NDArray[np.int32]
    slot: NDArray[np.int32]
    begin: NDArray[np.int32]
    length: NDArray[np.int32]
