"""Buffer of target features that the draft model has not read yet.

Reading up to 32 rows costs as much as reading one, and the draft model needs them only at its next proposal.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.arrays import GpuArray
from dflash.kernels.gpu import device
from dflash.kernels.tree.cuda import StashRows
from dflash.model.draft.context import Rows
from dflash.model.draft.state import DraftState

RowNumbers = Sequence[int] | NDArray[np.integer[Any]]

ROOM = 32
"""Most rows buffered for a sequence, and rows of the buffer for each."""

_PLACES = 4
"""Most sets of source arrays with a copy launch of their own; decode passes always use the same arrays."""


class FeatureBuffer:
    """Features of the newest rows of each sequence, which the draft model has not read, in the order of their forwards."""

    def __init__(self, taps: Sequence[int], slots: int, width: int) -> None:
        self._taps, self._shape = tuple(taps), (len(taps), slots * ROOM, width)
        self._rows: Any = None
        self._features: dict[int, GpuArray] = {}
        self._keeps: dict[tuple[int, ...], StashRows] = {}
        self._places: dict[DraftState, list[int]] = {}  # rows of the buffer
        self._end = 0

    def behind(self, items: Sequence[tuple[DraftState, RowNumbers]]) -> list[DraftState]:
        """Return the sequences whose buffered rows must be read before `add` buffers these: then there is room."""
        self._end = self._end if self._places else 0
        if self._end + sum(len(rows) for _, rows in items) > self._shape[1]:
            return list(self._places)
        full = [state for state, rows in items if len(self._places.get(state, ())) + len(rows) > ROOM]
        # those of which many are buffered share a pass
        return [*full, *(state for state, places in self._places.items() if full and len(places) >= ROOM // 2)]

    def add(self, items: Sequence[tuple[DraftState, RowNumbers]], features: Mapping[int, GpuArray]) -> None:
        """Buffer the next rows of some sequences, at most `ROOM` of each; rows that follow each other by one launch."""
        keep, rows = self._keep(features), np.concatenate([rows for _, rows in items])
        self._end = self._end if self._places else 0
        ends = [*(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
        for start, end in pairwise([0, *ends]):
            keep(int(rows[start]), end - start, self._end + start)
        for state, own in items:
            self._places.setdefault(state, []).extend(range(self._end, self._end + len(own)))
            self._end += len(own)
            state.length += len(own)

    def take(self, states: Sequence[DraftState]) -> tuple[list[tuple[DraftState, Rows]], dict[int, GpuArray]]:
        """Remove the buffered rows of some sequences; return the rows of each, and the arrays that hold them."""
        items: list[tuple[DraftState, Rows]] = []
        for state in states:
            if places := self._places.pop(state, None):
                state.length -= len(places)
                items.append((state, np.array(places, np.int32)))
        return items, self._features

    def _keep(self, features: Mapping[int, GpuArray]) -> StashRows:
        """Return the copy launch for source arrays."""
        sources = tuple(features[tap].data.ptr for tap in self._taps)
        if sources not in self._keeps:
            if len(self._keeps) == _PLACES:
                del self._keeps[next(iter(self._keeps))]
            if self._rows is None:
                self._rows = device.empty(*self._shape)
                self._features = dict(zip(self._taps, self._rows, strict=True))
            self._keeps[sources] = StashRows(device.array(np.array(sources, np.uint64)), self._rows)
        return self._keeps[sources]
