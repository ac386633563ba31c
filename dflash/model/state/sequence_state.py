"""What one sequence has seen, and how it is taken back."""

from collections.abc import Sequence
from typing import Any, Protocol

from dflash.errors import DFlashError
from dflash.kernels.gpu.lazy_array import LazyArray
from dflash.kernels.ragged import PAGE
from dflash.model.state.pools import Pools


class Snapshot:
    """A place to come back to: the pages of a text, shared, and a copy of its recurrent state.

    Attributes
    ----------
    length : int
        Committed tokens.
    """

    def __init__(self, pools: Pools, length: int, pages: list[int], recurrent: list[Any]) -> None:
        self.length, self.pages, self.recurrent = length, pages, recurrent
        self._pools: Pools | None = pools

    def close(self) -> None:
        """Let go of the pages; harmless if done before."""
        if self._pools is not None:
            self._pools.return_pages(self.pages)
            self._pools = None

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._pools is None


class Flush(Protocol):
    """Applies the kept rows of a slot to its recurrent state."""

    def __call__(self, slot: int, kept: Sequence[int], side: int) -> None:
        """Do it for the rows `kept` of the pass that wrote `side`."""


class State:
    """KV pages and recurrent slot of one sequence.

    Between steps it stands at all tokens of the text but the last. A forward leaves its rows pending; `commit` says which of
    them are text, and the next forward applies these to the recurrent state. What is not committed never was.

    Parameters
    ----------
    pools : Pools
        Where pages and the slot come from.
    flush : callable
        Applies kept rows to the recurrent state (a snapshot needs it to be complete).

    Attributes
    ----------
    length : int
        Committed tokens.
    """

    def __init__(self, pools: Pools, flush: Flush) -> None:
        self.slot = pools.take_slot()
        self.pages: list[int] = []
        self.length = 0
        self.kept: list[int] = []
        self.side = 0
        self._pools: Pools | None = pools
        self._flush = flush
        self._pending: Sequence[int] | None = None

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._pools is None

    @property
    def pending(self) -> tuple[int, ...] | None:
        """Parents of the rows that were read and may still become text; None if there are none."""
        return None if self._pending is None else tuple(self._pending)

    @property
    def pools(self) -> Pools:
        """Where pages come from; an error once the state is closed."""
        if self._pools is None:
            raise DFlashError("the state of this sequence is closed")
        return self._pools

    def reserve(self, n: int) -> None:
        """Hold pages for `n` tokens beyond the committed ones.

        Raises
        ------
        PoolExhausted
            If there are not enough; nothing is taken then.
        """
        missing = -(-(self.length + n) // PAGE) - len(self.pages)
        if missing > 0:
            self.pages += self.pools.take_pages(missing)

    def mark_read(self, parents: Sequence[int], *, prefill: bool) -> None:
        """Note that a forward has read rows with these parents (the model calls this)."""
        self.kept = []
        self.side ^= 1
        if prefill:
            self.length += len(parents)
            self._pending = None
        else:
            # parents that a device has made are looked at when rows are committed
            self._pending = parents if isinstance(parents, LazyArray) else tuple(parents)

    def commit(self, path: Sequence[int]) -> None:
        """Make some rows of the last forward text.

        Parameters
        ----------
        path : sequence of int
            Rows of the span, each the child of the one before; the first follows the committed text. May be empty.

        Raises
        ------
        DFlashError
            If there are no such pending rows or they are no path.
        """
        above, pending = -1, self._pending
        for row in path:
            if pending is None or not 0 <= row < len(pending) or pending[row] != above:
                raise DFlashError(f"commit: {list(path)} is no path through the pending rows {self.pending}")
            above = row
        if any(row != i for i, row in enumerate(path)):
            self.pools.compact(self.pages, self.length, list(path))
        self.kept = list(path)
        self.length += len(self.kept)
        self._pending = None

    def cut(self, length: int) -> None:
        """Forget all but the first `length` tokens; only where keys and values are all that is remembered."""
        assert not self.pools.slot_views(self.slot), "a recurrent state can't be cut back"
        self.length, self.kept, self._pending = length, [], None

    def snapshot(self) -> Snapshot:
        """Remember the committed text.

        Raises
        ------
        PoolExhausted
            If there is no page for the last, partly filled one; nothing changes then.
        OutOfMemory
            If the GPU has no room for the recurrent state.
        """
        pools = self.pools
        whole, rest = divmod(self.length, PAGE)
        last = pools.take_pages(1 if rest else 0)
        try:
            self._flush_accepted()
            recurrent = pools.clone_slot(self.slot)
            if rest:
                pools.copy_page(self.pages[whole], last[0])
        except BaseException:
            pools.return_pages(last)
            raise
        shared = self.pages[:whole]
        pools.share_pages(shared)
        return Snapshot(pools, self.length, shared + last, recurrent)

    def restore(self, snapshot: Snapshot) -> None:
        """Stand again where a snapshot was taken, of this sequence or of another of the same model.

        Raises
        ------
        DFlashError
            If the snapshot is closed.
        PoolExhausted
            If there is no page for a copy of its last one; nothing changes then.
        """
        pools = self.pools
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
        for array, was in zip(pools.slot_views(self.slot), snapshot.recurrent, strict=True):
            array[:] = was
        self.length, self.kept, self._pending = snapshot.length, [], None

    def close(self) -> None:
        """Give pages and slot back; harmless if done before."""
        if self._pools is not None:
            self._pools.return_pages(self.pages)
            self._pools.return_slot(self.slot)
            # a flush belongs to a model, which may remember this state
            self._pools, self._flush, self._pending, self.pages = None, _no_flush, None, []

    def _flush_accepted(self) -> None:
        """Bring the recurrent state up to the committed text, and drop what is pending."""
        if self.kept:
            self._flush(self.slot, self.kept, self.side)
        self.kept, self._pending = [], None


def _no_flush(*_: Any) -> None:
    raise DFlashError("the state of this sequence is closed")
