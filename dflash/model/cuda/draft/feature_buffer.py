"""Buffer of target features that the draft model has not read yet.

Reading up to 32 rows costs as much as reading one, and the draft model needs them only at its next proposal.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dflash.kernels.gpu import device
from dflash.kernels.tree.cuda import StashRows
from dflash.model.draft.context import Rows
from dflash.model.draft.state import DraftState

ROOM = 32
"""Rows buffered for each sequence."""

_PLACES = 4
"""Most sets of source arrays with a copy launch of their own; decode passes always use the same arrays."""


class FeatureBuffer:
    """Features of the newest rows of each sequence, which the draft model has not read."""

    def __init__(self, taps: Sequence[int], slots: int, width: int) -> None:
        self._taps, self._shape = tuple(taps), (len(taps), slots * ROOM, width)
        self._rows: Any = None
        self._features: dict[int, Any] = {}
        self._keeps: dict[tuple[int, ...], StashRows] = {}
        self._counts: dict[DraftState, int] = {}

    def add(self, state: DraftState, features: Mapping[int, Any], rows: Rows) -> bool:
        """Buffer the next rows of a sequence; return False if they do not fit or are not contiguous in `features`."""
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

    def half_full(self) -> list[DraftState]:
        """Return the sequences of which many rows are buffered."""
        return [state for state, n in self._counts.items() if n >= ROOM // 2]

    def take(self, states: Sequence[DraftState]) -> tuple[list[tuple[DraftState, Rows]], dict[int, Any]]:
        """Remove the buffered rows of some sequences; return the rows of each, and the arrays that hold them."""
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
