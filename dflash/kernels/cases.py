"""Test batches for the ops that keep recurrent state."""

from typing import NamedTuple


class Rows(NamedTuple):
    """The rows of one sequence.

    form: ``chain`` or ``tree``: the rows become pending. ``prefill``: a chain that the same pass commits.
    slot, accepted, buffer: as in `Ragged`.
    """

    n: int
    form: str = "chain"
    slot: int = 0
    accepted: tuple[int, ...] = ()
    buffer: int = 0


BATCHES = {
    "1 row": [Rows(1)],
    "2 rows": [Rows(2)],
    "3 rows": [Rows(3, slot=2)],
    "16 rows": [Rows(16)],
    "64 rows": [Rows(64)],
    "1 row of text": [Rows(1, "prefill")],
    "65 rows of text": [Rows(65, "prefill", slot=1)],
    "130 rows of text": [Rows(130, "prefill")],
    "5 in a tree": [Rows(5, "tree", slot=3, buffer=1)],
    "23 in a tree": [Rows(23, "tree")],
    "64 in a tree": [Rows(64, "tree", buffer=1)],
    "1 after 1": [Rows(1, accepted=(0,), buffer=1)],
    "2 after 3": [Rows(2, accepted=(0, 1, 2))],
    "text after a path": [Rows(37, "prefill", slot=2, accepted=(0, 2, 5, 9, 63))],
    "a tree after 64": [Rows(17, "tree", slot=6, accepted=tuple(range(64)))],
    "everything": [
        Rows(1, slot=4, accepted=(0,)),
        Rows(11, "tree", slot=0, buffer=1),
        Rows(70, "prefill", slot=6, accepted=(0, 1), buffer=1),
        Rows(4, slot=1, accepted=(0, 1, 2, 3, 4, 5)),
        Rows(1, "prefill", slot=5),
        Rows(64, "tree", slot=2, accepted=(0, 7), buffer=1),
    ],
}
"""Sequences of each named batch; slots are below 7."""
