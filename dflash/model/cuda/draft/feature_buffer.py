"""Features that a draft reads later: one row costs as much as some, and it need not read before it guesses."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dflash.kernels.gpu import device
from dflash.kernels.tree.cuda import StashRows
from dflash.model.draft.context import Rows
from dflash.model.draft.state import DraftState

ROOM = 32
"""Rows that are kept of a text."""

_PLACES = 4
"""Sets of arrays that are known; those of decode passes are always the same."""


class FeatureBuffer:
    """Features of the last rows of texts that the draft has not read.

    Parameters
    ----------
    taps : sequence of int
        Whose features.
    slots : int
        Texts at a time.
    width : int
    """

    def __init__(self, taps: Sequence[int], slots: int, width: int) -> None:
        self._taps, self._shape = tuple(taps), (len(taps), slots * ROOM, width)
        self._rows: Any = None
        self._features: dict[int, Any] = {}
        self._keeps: dict[tuple[int, ...], StashRows] = {}
        self._counts: dict[DraftState, int] = {}

    def add(self, state: DraftState, features: Mapping[int, Any], rows: Rows) -> bool:
        """Keep some rows of a text, the next ones; False if there is no room, or they do not lie together."""
        at, numbers = self._counts.get(state, 0), range(len(features[self._taps[0]]))
        found = list(numbers[rows]) if isinstance(rows, slice) else [numbers[row] for row in rows]
        if not found or at + len(found) > ROOM or found[-1] - found[0] != len(found) - 1:
            return False
        keep = self._keep(tuple(features[tap].data.ptr for tap in self._taps))
        if keep is None:
            return False
        keep(found[0], len(found), state.slot * ROOM + at)
        self._counts[state] = at + len(found)
        state.length += len(found)
        return True

    def take(self, states: Sequence[DraftState]) -> tuple[list[tuple[DraftState, Rows]], dict[int, Any]]:
        """What is kept of some texts, to be read now: rows of each, and the arrays that they are of."""
        items: list[tuple[DraftState, Rows]] = []
        for state in states:
            if n := self._counts.pop(state, 0):
                state.length -= n
                items.append((state, np.arange(n, dtype=np.int32) + state.slot * ROOM))
        return items, self._features

    def _keep(self, sources: tuple[int, ...]) -> StashRows | None:
        if sources not in self._keeps:
            if len(self._keeps) == _PLACES:
                return None
            if self._rows is None:
                self._rows = device.empty(*self._shape)
                self._features = dict(zip(self._taps, self._rows, strict=True))
            self._keeps[sources] = StashRows(device.array(np.array(sources, np.uint64)), self._rows)
        return self._keeps[sources]
