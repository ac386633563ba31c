"""State of a preempted session in host memory, with which it continues later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from dflash.decode.drafting.drafter import Drafter, DrafterState, snapshot_draft
from dflash.errors import OutOfMemory, PoolExhausted
from dflash.model.protocols.sequence import SequenceState
from dflash.model.protocols.target import TargetModel
from dflash.model.state.host_arrays import HostArrays


@dataclass(frozen=True, eq=False)
class PreemptedState:
    """Copy of a session's KV pages, recurrent state and drafter state: every bit, so that later tokens stay the same.

    A prefill of the tokens would not do: on a GPU, prefilled and decoded tokens leave states with different rounding.

    drafter: arrays of the drafter's snapshot; None if it has none. Then the drafter starts after these tokens.
    """

    length: int
    target: HostArrays
    drafter: HostArrays | None

    @classmethod
    def of(cls, state: SequenceState, drafter_state: DrafterState) -> Self:
        """Copy the state of a session between two steps. Takes no pages of the target."""
        return cls(state.length, state.host_arrays(), _drafter_arrays(drafter_state))

    def drafter_snapshot(self, model: TargetModel, drafter: Drafter) -> Any:
        """Return a snapshot for `Drafter.start`, which the caller closes; None if there is none."""
        return None if self.drafter is None else drafter.snapshot_from_host(model, self.drafter)


def _drafter_arrays(drafter_state: DrafterState) -> HostArrays | None:
    """Copy the state of a drafter to the host; None if it makes no snapshot that can be copied, or there is no memory."""
    try:
        snapshot = snapshot_draft(drafter_state)
    except (PoolExhausted, OutOfMemory):
        return None  # drafts change, tokens do not
    if snapshot is None:
        return None
    try:
        return snapshot.host_arrays() if hasattr(snapshot, "host_arrays") else None
    finally:
        snapshot.close()
