"""A place in a text to begin other texts from."""

from __future__ import annotations

from typing import Any, Protocol

from dflash.decode.drafting.drafter import Drafter, DrafterState
from dflash.errors import DFlashError
from dflash.model.state.sequence_state import Snapshot, State


class RunningSession(Protocol):
    """Members of a session that its snapshot uses."""

    token_ids: list[int]
    """Ids of the prompt and of all accepted tokens; the state holds all but the last of them at most."""

    state: State | None
    """State of the target; None if the session does not run."""

    drafter: Drafter
    """The drafter in use."""

    drafter_state: DrafterState | None
    """Its state; None if the session does not run."""


class SessionSnapshot:
    """What a session has read: the state of the target, and what its drafter knows of the text.

    Any number of sessions may begin with it, as ``Session(prompt, prefix=...)``; it stays the caller's, who closes it.

    Parameters
    ----------
    session : Session
        At work, between two steps of its engine, in the thread of that.

    Attributes
    ----------
    length : int
        Tokens read.
    token_ids : list of int
        What they are.
    state : Snapshot
        Of the target.
    drafter : Drafter
        Whose memory is there, too.
    drafter_state : optional
        The memory; None where the drafter keeps none: it begins at the end of the prefix then.

    Raises
    ------
    DFlashError
        If the session does not run.
    PoolExhausted, OutOfMemory
        If there is no memory for it; nothing changes then.
    """

    def __init__(self, session: RunningSession) -> None:
        if session.state is None or session.drafter_state is None:
            raise DFlashError(f"snapshot: {session!r} holds nothing to remember")
        self.length: int = session.state.length
        self.token_ids = session.token_ids[: self.length]
        self.drafter: Drafter = session.drafter
        self.state: Snapshot = session.state.snapshot()
        try:
            self.drafter_state: Any = session.drafter_state.snapshot()
        except BaseException:
            self.state.close()
            raise

    def of(self, drafter: Drafter) -> Any:
        """What `drafter` may be started with."""
        return self.drafter_state if drafter == self.drafter else None

    def close(self) -> None:
        """Let go of what it holds; harmless if done before."""
        drafter_state, self.drafter_state = self.drafter_state, None
        try:
            if drafter_state is not None:
                drafter_state.close()
        finally:
            self.state.close()

    def __repr__(self) -> str:
        return f"SessionSnapshot({self.length} tokens, {self.drafter!r})"
