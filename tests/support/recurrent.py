"""Batches and checks for tests of what remembers a sequence: the conv and the delta rule."""

from dataclasses import fields, replace

import numpy as np
from batches import chain, ragged, tree
from compare import assert_same_bits

from dflash.kernels.cases import Rows
from dflash.kernels.ragged import PENDING

SLOTS = 7


def batch(sequences, *, parents=None):
    """Batch of `Rows`; random trees unless their parents are given."""
    rng = np.random.default_rng(sum(rows.n for rows in sequences))
    if parents is None:
        parents = [tree(rng, rows.n) if rows.form == "tree" else chain(rows.n) for rows in sequences]
    kept = np.full((len(sequences), PENDING), -(2**30), np.int32)
    for row, rows in zip(kept, sequences, strict=True):
        row[: len(rows.accepted)] = rows.accepted
    columns = {
        "slot": [rows.slot for rows in sequences],
        "n_accepted": [len(rows.accepted) for rows in sequences],
        "buffer": [rows.buffer for rows in sequences],
    }
    made = ragged([(0, above, rows.form == "prefill") for above, rows in zip(parents, sequences, strict=True)])
    return made._replace(accepted=kept, **{name: np.array(column, np.int32) for name, column in columns.items()})


def path_to(parents, row):
    """Rows from the root down to `row`."""
    path = []
    while row >= 0:
        path.insert(0, row)
        row = parents[row]
    return path


def copy(memory):
    return replace(memory, **{field.name: getattr(memory, field.name).copy() for field in fields(memory)})


def poison(memory, sequences):
    """NaN in all slots and pending rows that the sequences must not read."""
    for field in fields(memory):
        array = getattr(memory, field.name)
        if field.name in ("state", "tail"):
            array[[slot for slot in range(SLOTS) if slot not in [rows.slot for rows in sequences]]] = np.nan
            continue
        kept = np.zeros(array.shape[:3], bool)
        for rows in sequences:
            kept[rows.buffer, rows.slot, list(rows.accepted)] = True
        array[~kept] = np.nan
    return memory


def assert_untouched(after, before, sequences):
    """Other slots, the buffer that was read, and rows past the last one keep their bits."""
    for field in fields(before):
        got, want = getattr(after, field.name), getattr(before, field.name)
        free = np.ones(got.shape[: 1 if field.name in ("state", "tail") else 3], bool)
        for rows in sequences:
            if free.ndim == 1:
                free[rows.slot] = False
            elif rows.form != "prefill":
                free[1 - rows.buffer, rows.slot, : rows.n] = False
        assert_same_bits(f"{field.name} elsewhere", got[free], want[free])


def guarded(*shape):
    """Array of NaN and a view of all its rows but the first and the last."""
    room = np.full((shape[0] + 2, *shape[1:]), np.nan, np.float32)
    return room, room[1:-1]


def assert_guards(room):
    assert np.isnan(room[[0, -1]]).all()


def steps(n, form="chain", slot=0):
    """Sequences of one row each, one after another in a slot."""
    for i in range(n):
        yield Rows(1, form, slot, (0,) if i and form != "prefill" else (), buffer=i % 2)
