"""State of one sequence in a model, with commit of accepted rows, snapshot and restore."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dflash.errors import DFlashError
from dflash.kernels.delta.state_copies import StateCopy
from dflash.kernels.gpu.lazy_array import LazyArray
from dflash.kernels.ragged import PAGE
from dflash.model.protocols.sequence import Parents, SequenceSnapshot
from dflash.model.state.host_arrays import (
    HostArrays,
    checked,
    copy_pages,
    copy_slot,
    placed_like,
    to_host,
    write_pages,
    write_slot,
)
from dflash.model.state.pools import Pools

MOST_KEPT = 8
"""Steps after which a sequence of a large batch writes its state. Each step applies the kept rows.

Measured on an H200 with 8 to 128 sequences of a 27B: of 4 and 8 the better one for 64 and more, and equal for fewer.
"""

LEAST_SEQUENCES = 8
"""Fewest sequences of a pass that keeps rows: with fewer, states are written while the GPU waits for other launches."""


def first_row(accepted: Sequence[int], length: int, slot: int, sequences: int, pending: int) -> int:
    """Return the row of the same pending buffer at which the next pass of one row writes."""
    if not accepted or sequences < LEAST_SEQUENCES or len(accepted) >= MOST_KEPT or (length + slot) % MOST_KEPT == 0:
        return 0
    return (accepted[-1] + 1) % pending


class Snapshot:
    """Snapshot of a sequence: its pages, shared with the sequence, and a copy of its recurrent state."""

    def __init__(self, pools: Pools, length: int, pages: list[int], recurrent: list[Any]) -> None:
        self.length, self.pages, self.recurrent = length, pages, recurrent
        self._pools: Pools | None = pools

    def close(self) -> None:
        """Return the pages; later calls have no effect."""
        if self._pools is not None:
            self._pools.return_pages(self.pages)
            self._pools = None

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._pools is None

    @property
    def n_bytes(self) -> int:
        """Bytes of the copied recurrent state; the pages count apart, since other snapshots may share them."""
        return sum(array.nbytes for array in self.recurrent)

    def cut(self, length: int) -> "Snapshot | None":
        """Return a snapshot of the first tokens, None for a model with a recurrent state; see `SequenceSnapshot.cut`."""
        if self._pools is None or self.recurrent:
            return None
        pages = self.pages[: -(-length // PAGE)]
        self._pools.share_pages(pages)
        return Snapshot(self._pools, length, pages, [])

    def host_arrays(self) -> HostArrays:
        """Copy the snapshot to the host; on a CPU the recurrent state is not copied, since nothing writes to it.

        Returns: ``length``, int64 (1,); ``k`` and ``v`` as `copy_pages` returns them; ``recurrent.0`` and so on.
        """
        if self._pools is None:
            raise DFlashError("host_arrays: the snapshot is closed")
        found = {"length": np.array([self.length], np.int64)} | copy_pages(self._pools, self.pages, self.length)
        return found | {f"recurrent.{i}": to_host(array) for i, array in enumerate(self.recurrent)}

    @classmethod
    def from_host(cls, pools: Pools, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return a snapshot with the content of `host_arrays`, in pages of its own."""
        length = int(checked(arrays, "length", (1,), np.int64)[0])
        recurrent = [
            placed_like(checked(arrays, f"recurrent.{i}", view.shape, view.dtype), view)
            for i, view in enumerate(pools.slot_views(0))
        ]
        return cls(pools, length, write_pages(pools, arrays, length), recurrent)


class FlushFunction(Protocol):
    """Function of a model that applies accepted rows to the recurrent state of a slot."""

    def __call__(self, slot: int, accepted: Sequence[int], buffer: int) -> None:
        """Apply the rows `accepted` of the last forward, whose inputs it stored in this buffer (0 or 1)."""


class State:
    """KV pages and recurrent slot of one sequence.

    Between steps, the state includes all tokens of the text except the last. A decode forward leaves its rows pending.
    `commit` accepts some of them, and the next forward applies the accepted rows to the recurrent state. Rejected rows have
    no effect.

    flush: applies accepted rows to the recurrent state; used before a snapshot, which needs the complete state.
    keeps_rows: passes of many sequences may leave accepted rows in the pending buffer, see `first_row`.
    accepted: committed rows of pending buffer `buffer` that the recurrent state does not include, root first.
    """

    def __init__(self, pools: Pools, flush: FlushFunction, *, keeps_rows: bool = False) -> None:
        self.slot = pools.take_slot()
        self.pages: list[int] = []
        self.length = 0
        self.accepted: list[int] = []
        self.buffer, self.first, self._next_first, self._keeps_rows = 0, 0, 0, keeps_rows
        self._pools: Pools | None = pools
        self._flush = flush
        self._pending: Sequence[int] | None = None

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._pools is None

    @property
    def pending(self) -> tuple[int, ...] | None:
        """Parents of the pending rows, which `commit` may accept; None if there are none."""
        return None if self._pending is None else tuple(self._pending)

    @property
    def pools(self) -> Pools:
        """Pools that own the pages; raises `DFlashError` once the state is closed."""
        if self._pools is None:
            raise DFlashError("the state of this sequence is closed")
        return self._pools

    def reserve(self, n: int) -> None:
        """Take pages for `n` tokens beyond the committed ones; see `SequenceState.reserve`."""
        missing = -(-(self.length + n) // PAGE) - len(self.pages)
        if missing > 0:
            self.pages += self.pools.take_pages(missing)

    def plan(self, accepted: Sequence[int], length: int, *, single: bool, sequences: int) -> int:
        """Return the buffer of the next forward as in `Ragged`, if these rows are accepted and `length` tokens committed.

        Called for each forward, before `mark_read`. `single`: the sequence has one row, that is not of a prompt.
        """
        keeps = self._keeps_rows and single
        self._next_first = first_row(accepted, length, self.slot, sequences, self.pools.pending) if keeps else 0
        return self.buffer + 2 * self._next_first

    def mark_read(self, parents: Parents, *, prefill: bool) -> None:
        """Record that a forward has read rows with these parents; called by the model."""
        self.first, self._next_first = self._next_first, 0
        if self.first == 0:
            self.accepted = []
            self.buffer ^= 1
        if prefill:
            self.length += len(parents)
            self._pending = None
        else:
            # parents that a device computes are fetched when rows are committed
            self._pending = parents if isinstance(parents, LazyArray) else tuple(parents)

    def commit(self, path: Sequence[int]) -> None:
        """Accept some rows of the last forward; see `SequenceState.commit`."""
        above, pending = -1, self._pending
        for row in path:
            if pending is None or not 0 <= row < len(pending) or pending[row] != above:
                raise DFlashError(f"commit: {list(path)} is not a path through the pending rows {self.pending}")
            above = row
        if any(row != i for i, row in enumerate(path)):
            self.pools.compact(self.pages, self.length, list(path))
        self.accepted = self.accepted + [self.first + row for row in path]
        self.length += len(path)
        self._pending = None

    def cut(self, length: int) -> None:
        """Remove all but the first `length` tokens; only valid for a model without recurrent state."""
        assert not self.pools.slot_views(self.slot), "a recurrent state can't be cut back"
        self.length, self.accepted, self._pending = length, [], None

    def copy_after(self, n: int) -> StateCopy:
        """Take memory for a copy of the recurrent state after `n` more tokens; see `SequenceState.copy_after`."""
        return StateCopy(n, self.length + n, self.pools.empty_slot_copy())

    def snapshot(self, copy: StateCopy | None = None) -> Snapshot:
        """Take a snapshot of the committed text, or of its beginning; see `SequenceState.snapshot`."""
        pools, length = self.pools, self.length if copy is None else copy.length
        whole, rest = divmod(length, PAGE)
        last = pools.take_pages(1 if rest else 0)
        try:
            if copy is None:
                self._flush_accepted()
            recurrent = pools.clone_slot(self.slot) if copy is None else [*copy.arrays]
            if rest:
                pools.copy_page(self.pages[whole], last[0])
        except BaseException:
            pools.return_pages(last)
            raise
        shared = self.pages[:whole]
        pools.share_pages(shared)
        return Snapshot(pools, length, shared + last, recurrent)

    def restore(self, snapshot: SequenceSnapshot) -> None:
        """Return to a snapshot; see `SequenceState.restore`."""
        pools = self.pools
        assert isinstance(snapshot, Snapshot), "a snapshot of the same model"
        if snapshot.closed:
            raise DFlashError("restore: the snapshot is closed")
        whole, rest = divmod(snapshot.length, PAGE)
        last = pools.take_pages(1 if rest else 0)
        try:
            if rest:
                pools.copy_page(snapshot.pages[whole], last[0])
        except BaseException:
            pools.return_pages(last)
            raise
        pools.share_pages(snapshot.pages[:whole])
        pools.return_pages(self.pages)
        self.pages = snapshot.pages[:whole] + last
        pools.restore_slot(self.slot, snapshot.recurrent)
        self.length, self.accepted, self._pending = snapshot.length, [], None

    def host_arrays(self) -> HostArrays:
        """Copy the committed tokens' state to the host, as `Snapshot.host_arrays` does; takes no page and no GPU memory."""
        self._flush_accepted()
        found = {"length": np.array([self.length], np.int64)} | copy_pages(self.pools, self.pages, self.length)
        return found | copy_slot(self.pools, self.slot)

    def restore_from_host(self, arrays: HostArrays, shared: Sequence[int] = ()) -> None:
        """Continue from the arrays of `host_arrays`; see `SequenceState.restore_from_host`."""
        assert not self.pages, "a sequence without tokens"
        length = int(checked(arrays, "length", (1,), np.int64)[0])
        self.pages = write_pages(self.pools, arrays, length, shared)
        write_slot(self.pools, self.slot, arrays)
        self.length, self.accepted, self._pending = length, [], None

    def close(self) -> None:
        """Return pages and slot; later calls have no effect."""
        if self._pools is not None:
            self._pools.return_pages(self.pages)
            self._pools.return_slot(self.slot)
            # the model that owns the flush may hold a reference to this state: break the cycle
            self._pools, self._flush, self._pending, self.pages = None, _no_flush, None, []

    def _flush_accepted(self) -> None:
        """Apply accepted rows to the recurrent state, and drop pending ones."""
        if self.accepted:
            self._flush(self.slot, self.accepted, self.buffer)
        self.accepted, self._pending = [], None


def _no_flush(slot: int, accepted: Sequence[int], buffer: int) -> None:  # noqa: ARG001
    raise DFlashError("the state of this sequence is closed")
