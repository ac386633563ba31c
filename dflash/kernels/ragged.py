"""Which token of a batch belongs to which sequence, and where it stands."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PAGE = 256
"""Positions in a page of the KV cache."""

PENDING = 64
"""Most tokens that a sequence may have pending: read, but not yet known to be text."""


class Ragged(NamedTuple):
    """The rows of one forward: N tokens of S sequences, each sequence's own a tree under its committed text.

    All arrays are int32 and C-contiguous; a row is counted within its own sequence.

    Parameters
    ----------
    first : int32 (S + 1,)
        Rows of sequence s are ``first[s]:first[s + 1]``.
    sequence : int32 (N,)
        The sequence of a row.
    parent : int32 (N,)
        The row above, counted within the sequence; -1 follows the committed text. Parents come before children.
    depth : int32 (N,)
        Ancestors among the rows; the text position of a row is ``length + depth``.
    length : int32 (S,)
        Committed tokens, whose keys and values count.
    pages : int32 (S, P)
        Text position p is row ``p % PAGE`` of page ``pages[s, p // PAGE]``. Row i is written at ``length + i``.
    slot : int32 (S,)
        Where the recurrent state of the sequence lives.
    whole : int32 (S,)
        1 if the rows are a chain that this very pass commits (prefill).
    kept : int32 (S, PENDING)
        Rows of the slot's previous pass that are text now and not in the recurrent state yet, root first.
    n_kept : int32 (S,)
        How many of them.
    side : int32 (S,)
        Which of the slot's two pending buffers holds that previous pass; this pass writes the other.
    """

    first: NDArray[np.int32]
    sequence: NDArray[np.int32]
    parent: NDArray[np.int32]
    depth: NDArray[np.int32]
    length: NDArray[np.int32]
    pages: NDArray[np.int32]
    slot: NDArray[np.int32]
    whole: NDArray[np.int32]
    kept: NDArray[np.int32]
    n_kept: NDArray[np.int32]
    side: NDArray[np.int32]
