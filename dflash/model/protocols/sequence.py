"""Protocols of the state of one sequence in a target model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.delta.state_copies import StateCopy
from dflash.model.state.host_arrays import HostArrays

Parents = Sequence[int] | NDArray[np.int32]
"""Parent of each row of a span; -1 follows the committed tokens."""


class SequenceSnapshot(Protocol):
    """Copy of a sequence's state, to which it or another sequence of the same model returns.

    Taken by `SequenceState.snapshot`. Its owner closes it once; sequences that were restored to it live on.
    """

    @property
    def length(self) -> int:
        """Number of tokens in the copy. Read at admission, to find how much of a prompt it holds; never changes."""

    @property
    def pages(self) -> Sequence[int]:
        """KV pages of the copy, which other copies and sequences may share. Read by the prefix cache; never changes."""

    @property
    def n_bytes(self) -> int:
        """Bytes of the copy without its pages. Read by the prefix cache, which bounds its memory; never changes."""

    @property
    def closed(self) -> bool:
        """True once `close` was called. Read when a session is started again, whose prefix may be gone."""

    def cut(self, length: int) -> SequenceSnapshot | None:
        """Return a snapshot of the first `length` tokens that shares this one's pages; None if the state can't be cut back.

        Called by the prefix cache, between two forwards, before `close`. Takes no memory.
        """

    def close(self) -> None:
        """Release the memory of the copy. Called by the owner, between two forwards; later calls have no effect."""


class SequenceState(Protocol):
    """KV cache and recurrent state of one sequence, made by `TargetModel.state`.

    All methods are called in the thread that owns the model, and never while a forward over the sequence is being laid out.
    Between two steps the state includes all tokens of the sequence except the last.
    """

    @property
    def length(self) -> int:
        """Number of committed tokens. Read between forwards, by the engine and by snapshots."""

    @property
    def pending(self) -> Sequence[int] | None:
        """Parents of the rows that the last decode forward left pending; None if there are none.

        Read by `OverlappedStep.take` before it uses a forward that was launched ahead. Reading may wait for the device.
        """

    def reserve(self, n: int) -> None:
        """Take memory for `n` tokens beyond the committed ones.

        Called at admission, and before each step for the rows that the sequence may have in its forward.

        Raises
        ------
        PoolExhausted
            If there are not enough pages; none is taken then.
        """

    def mark_read(self, parents: Parents, *, prefill: bool) -> None:
        """Record that a forward has read rows with these parents.

        Called by the model in `TargetModel.forward`. The engine calls it only for `OverlappingModel.forward_overlapped`,
        once the row before was committed.
        """

    def commit(self, path: Sequence[int]) -> None:
        """Accept some pending rows of the last forward; the others are rejected.

        Called once after each decode forward over the sequence, by the engine or by a drafter that owns the state.

        Parameters
        ----------
        path : sequence of int
            Rows of the span, each the child of the row before; the first follows the committed tokens. May be empty.

        Raises
        ------
        DFlashError
            If a row is not pending or not the child of the row before it.
        """

    def copy_after(self, n: int) -> StateCopy:
        """Take memory for a copy of the recurrent state after `n` tokens of the prefill span that is being planned.

        Called only if `TargetModel.max_state_copies` is not 0, with `n` that ends at a multiple of its `chunk_alignment`.

        Raises
        ------
        OutOfMemory
            If there is no memory for the copy.
        """

    def snapshot(self, copy: StateCopy | None = None) -> SequenceSnapshot:
        """Copy the committed tokens' state and drop pending rows. Called between two steps.

        With `copy`, which a forward has filled, the snapshot is that of the state after its tokens, and owns its arrays.

        Raises
        ------
        PoolExhausted, OutOfMemory
            If there is no memory for the copy; nothing changes then.
        """

    def restore(self, snapshot: SequenceSnapshot) -> None:
        """Return to a snapshot that a sequence of the same model has taken. Called at admission, before `reserve`.

        Raises
        ------
        DFlashError
            If the snapshot is closed.
        PoolExhausted
            If there is no memory for a copy of its last page; nothing changes then.
        """

    def host_arrays(self) -> HostArrays:
        """Copy the committed tokens' state to the host and drop pending rows. Called between two steps, before `close`.

        Takes no memory of the pools.
        """

    def restore_from_host(self, arrays: HostArrays, shared: Sequence[int] = ()) -> None:
        """Continue from a copy that `host_arrays` of a sequence of the same model has made, with the same bits.

        Called at admission, before `reserve`. `shared` are full pages that the sequence shared at its beginning; it shares
        them again.

        Raises
        ------
        PoolExhausted, OutOfMemory
            If there is no memory; the sequence can only be closed then.
        """

    def close(self) -> None:
        """Release all memory. Called when the session ends or restarts, also after errors; later calls have no effect."""
