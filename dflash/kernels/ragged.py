"""Description of a ragged batch: the sequence, parent and position of every row."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PAGE = 256
"""Positions in a page of the KV cache."""

PENDING = 64
"""Largest number of pending rows of a sequence: rows that were read but not yet accepted or rejected."""


class Ragged(NamedTuple):
    """The rows of one forward: N tokens of S sequences; the rows of a sequence form a tree after its committed tokens.

    All arrays are int32 and C-contiguous. Row numbers count from the first row of the sequence.

    row_starts: int32 (S + 1,); rows of sequence s are ``row_starts[s]:row_starts[s + 1]``.
    sequence: int32 (N,); sequence of each row.
    parent: int32 (N,); parent row within the sequence; -1 if the row follows the committed tokens directly. Parents come
        before children.
    depth: int32 (N,); number of ancestors among the rows; the position of a row is ``length + depth``.
    length: int32 (S,); committed tokens, whose keys and values are in the cache.
    pages: int32 (S, P); position p is place ``p % PAGE`` of page ``pages[s, p // PAGE]``. Row i is written at ``length +
        i``.
    slot: int32 (S,); slot of the sequence's recurrent state.
    prefill: int32 (S,); 1 if the rows are a chain that this pass commits.
    accepted: int32 (S, PENDING); accepted rows of the slot's previous pass that the recurrent state does not include yet,
        root first.
    n_accepted: int32 (S,); number of valid entries in `accepted`.
    buffer: int32 (S,); pending buffer, 0 or 1, of the slot that holds the previous pass; this pass writes the other one. On
        a GPU twice the row of the same buffer from which on this pass writes may be added. The accepted rows then stay as
        they are, to be applied again by the next pass, and the recurrent state is not written.
    """

    row_starts: NDArray[np.int32]
    sequence: NDArray[np.int32]
    parent: NDArray[np.int32]
    depth: NDArray[np.int32]
    length: NDArray[np.int32]
    pages: NDArray[np.int32]
    slot: NDArray[np.int32]
    prefill: NDArray[np.int32]
    accepted: NDArray[np.int32]
    n_accepted: NDArray[np.int32]
    buffer: NDArray[np.int32]
