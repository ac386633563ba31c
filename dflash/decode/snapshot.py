"""Copy of a running session's state, from which other sessions can begin."""

from __future__ import annotations

from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dflash.decode.drafting.drafter import Drafter, DrafterSnapshot, DrafterState
from dflash.errors import DFlashError
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


class SessionSnapshot:
    """State of the target and of the drafter after the tokens that a session has in the KV cache.

    Any number of sessions may begin with it, as ``Session(prompt, prefix=...)``. The caller owns it and closes it.

    Parameters
    ----------
    session : Session
        Running, between two steps of its engine, in the engine's thread.

    Attributes
    ----------
    length : int
        Number of tokens in the state.
    token_ids : list of int
        Their ids.
    n_prompt : int
        Number of tokens of the session's prompt; it may exceed `length`.
    state : SequenceSnapshot
        Snapshot of the target's state.
    drafter : Drafter
        The session's drafter.
    drafter_state : DrafterSnapshot or None
        Snapshot of the drafter's state; None if the drafter makes none. Then it starts at the end of the prefix.

    Raises
    ------
    DFlashError
        If the session is not running.
    PoolExhausted, OutOfMemory
        If there is no memory for the copy; nothing changes then.
    """

    def __init__(self, session: RunningSession) -> None:
        if session.state is None or session.drafter_state is None:
            raise DFlashError(f"snapshot: {session!r} is not running")
        self.length: int = session.state.length
        self.token_ids = session.token_ids[: self.length]
        self.n_prompt = session.n_prompt
        self._prompt = session.prompt_array
        self.drafter: Drafter = session.drafter
        self.state: SequenceSnapshot = session.state.snapshot()
        try:
            self.drafter_state: DrafterSnapshot | None = session.drafter_state.snapshot()
        except BaseException:
            self.state.close()
            raise

    @classmethod
    def restored(
        cls,
        ids: NDArray[np.int32],
        n_prompt: int,
        state: SequenceSnapshot,
        drafter: Drafter,
        drafter_state: DrafterSnapshot | None,
    ) -> Self:
        """Return a snapshot of given parts, which it owns from now on; `ids` are those in the state, int32 (length,)."""
        found = cls.__new__(cls)
        found.length, found.token_ids, found.n_prompt = state.length, ids.tolist(), n_prompt
        found._prompt = ids[:n_prompt]
        found.state, found.drafter, found.drafter_state = state, drafter, drafter_state
        return found

    def of(self, drafter: Drafter) -> DrafterSnapshot | None:
        """Return the snapshot for `Drafter.start` of `drafter`; None if it is of another drafter."""
        return self.drafter_state if drafter == self.drafter else None

    @property
    def ids(self) -> NDArray[np.int32]:
        """`token_ids` as an array, int32 (length,). The prompt's part is copied as one, since a list converts slowly."""
        return np.concatenate([self._prompt[: self.length], np.array(self.token_ids[self.n_prompt :], np.int32)])

    @property
    def n_bytes(self) -> int:
        """Bytes of the copies of recurrent states, and of the drafter's state."""
        return self.state.n_bytes + getattr(self.drafter_state, "n_bytes", 0)

    def close(self) -> None:
        """Release the memory; harmless if done before."""
        drafter_state, self.drafter_state = self.drafter_state, None
        try:
            if drafter_state is not None:
                drafter_state.close()
        finally:
            self.state.close()

    def __repr__(self) -> str:
        return f"SessionSnapshot({self.length} tokens, {self.drafter!r})"
