"""Copy of a running session's state, from which other sessions can begin."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dflash.decode.drafting.drafter import Drafter, DrafterSnapshot, DrafterState
from dflash.errors import DFlashError
from dflash.kernels.delta.state_copies import StateCopy
from dflash.model.protocols.sequence import SequenceSnapshot, SequenceState


class RunningSession(Protocol):
    """Members of a session that its snapshot uses."""

    n_prompt: int
    """Number of prompt tokens."""

    prompt_array: NDArray[np.int32]
    """Ids of the prompt, read-only."""

    token_ids: list[int]
    """Ids of the prompt and of all accepted tokens; the state holds all but the last of them at most."""

    state: SequenceState | None
    """State of the target; None if the session does not run."""

    drafter: Drafter
    """The drafter in use."""

    drafter_state: DrafterState | None
    """Its state; None if the session does not run."""


MAX_DRAFTERS = 4
"""States of different drafters in one snapshot; the oldest is dropped for a fifth."""


class SessionSnapshot:
    """State of the target, and of one or more drafters, after the tokens that a session has in the KV cache.

    Any number of sessions may begin with it, as ``Session(prompt, prefix=...)``. The caller owns it and closes it.

    session: running, between two steps of its engine, in the engine's thread.
    copy: copy of the target's state inside of its prompt, up to which its drafter has observed; by default the present
        state.
    n_prompt: number of tokens of the session's prompt; it may exceed `length`.
    drafter_states: snapshots of the states of the session's drafter, if it makes any, and of other drafters; the newest one
        last.
    """

    def __init__(self, session: RunningSession, copy: StateCopy | None = None) -> None:
        if session.state is None or session.drafter_state is None:
            raise DFlashError(f"snapshot: {session!r} is not running")
        self.length: int = session.state.length if copy is None else copy.length
        self.token_ids = session.token_ids[: self.length]
        self.n_prompt = session.n_prompt
        self._prompt = session.prompt_array
        self.state: SequenceSnapshot = session.state.snapshot(copy)
        try:
            drafter_state: DrafterSnapshot | None = session.drafter_state.snapshot()
        except BaseException:
            self.state.close()
            raise
        self.drafter_states = {} if drafter_state is None else {session.drafter: drafter_state}

    @classmethod
    def restored(
        cls,
        ids: NDArray[np.int32],
        n_prompt: int,
        state: SequenceSnapshot,
        drafter: Drafter | None = None,
        drafter_state: DrafterSnapshot | None = None,
    ) -> Self:
        """Return a snapshot of given parts, which it owns from now on; `ids` are those in the state, int32 (length,)."""
        found = cls.__new__(cls)
        found.length, found.token_ids, found.n_prompt = state.length, ids.tolist(), n_prompt
        found._prompt = ids[:n_prompt]
        found.state = state
        found.drafter_states = {} if drafter is None or drafter_state is None else {drafter: drafter_state}
        return found

    def cut(self, length: int) -> Self | None:
        """Return a snapshot of the first tokens without a drafter's state; None if the target's state can't be cut back."""
        state = self.state.cut(length)
        return None if state is None else self.restored(self.ids[:length], self.n_prompt, state)

    def continued_by(self, prompt: NDArray[np.int32]) -> bool:
        """Return True if a prompt, int32 (n,), goes on after the whole prompt of the session, as far as that is known."""
        known, n = self._prompt, self.n_prompt
        return len(prompt) > n == len(known) and np.array_equal(prompt[:n], known)

    def of(self, drafter: Drafter) -> DrafterSnapshot | None:
        """Return the snapshot for `Drafter.start` of `drafter`; None if there is none."""
        return self.drafter_states.get(drafter)

    def take_drafters(self, other: Self) -> None:
        """Take the states of other drafters from a snapshot after the same tokens, which keeps the rest."""
        both = {**other.drafter_states, **self.drafter_states}
        wanted = dict([*both.items()][-MAX_DRAFTERS:])
        other.drafter_states = {
            drafter: state for drafter, state in other.drafter_states.items() if wanted.get(drafter) is not state
        }
        self.drafter_states = wanted

    @property
    def ids(self) -> NDArray[np.int32]:
        """`token_ids` as an array, int32 (length,). The prompt's part is copied as one, since a list converts slowly."""
        return np.concatenate([self._prompt[: self.length], np.array(self.token_ids[self.n_prompt :], np.int32)])

    @property
    def n_bytes(self) -> int:
        """Bytes of the copies of recurrent states, and of the drafters' states."""
        return self.state.n_bytes + sum(getattr(state, "n_bytes", 0) for state in self.drafter_states.values())

    def close(self) -> None:
        """Release the memory; harmless if done before."""
        drafter_states, self.drafter_states = self.drafter_states, {}
        with ExitStack() as parts:
            parts.callback(self.state.close)
            for drafter_state in drafter_states.values():
                parts.callback(drafter_state.close)

    def __repr__(self) -> str:
        return f"SessionSnapshot({self.length} tokens, {[*self.drafter_states]!r})"
