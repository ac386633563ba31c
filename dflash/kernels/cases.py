"""Test batches for the ops that keep recurrent state."""

from typing import NamedTuple


class Rows(NamedTuple):
    """The rows of one sequence.

    Parameters
    ----------
    n : int
        Number of rows.
    form : str
        ``chain`` or ``tree``: the rows become pending. ``whole``: a chain that the same pass commits.
    slot, kept, side
        As in `Ragged`.
    """

    n: int
    form: str = "chain"
    slot: int = 0
    kept: tuple[int, ...] = ()
    side: int = 0


BATCHES = {
    "1 row": [Rows(1)],
    "2 rows": [Rows(2)],
    "3 rows": [Rows(3, slot=2)],
    "16 rows": [Rows(16)],
    "64 rows": [Rows(64)],
    "1 row of text": [Rows(1, "whole")],
    "65 rows of text": [Rows(65, "whole", slot=1)],
    "130 rows of text": [Rows(130, "whole")],
    "5 in a tree": [Rows(5, "tree", slot=3, side=1)],
    "23 in a tree": [Rows(23, "tree")],
    "64 in a tree": [Rows(64, "tree", side=1)],
    "1 after 1": [Rows(1, kept=(0,), side=1)],
    "2 after 3": [Rows(2, kept=(0, 1, 2))],
    "text after a path": [Rows(37, "whole", slot=2, kept=(0, 2, 5, 9, 63))],
    "a tree after 64": [Rows(17, "tree", slot=6, kept=tuple(range(64)))],
    "everything": [
        Rows(1, slot=4, kept=(0,)),
        Rows(11, "tree", slot=0, side=1),
        Rows(70, "whole", slot=6, kept=(0, 1), side=1),
        Rows(4, slot=1, kept=(0, 1, 2, 3, 4, 5)),
        Rows(1, "whole", slot=5),
        Rows(64, "tree", slot=2, kept=(0, 7), side=1),
    ],
}
"""Sequences of each named batch; slots are below 7."""
