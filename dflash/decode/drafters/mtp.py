"""Guess with the head that a model was trained with for that: multi-token prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dflash.decode.draft import EMPTY, Draft
from dflash.decode.drafter import Drafter, Drafting, Rows
from dflash.decode.shapes import Chain
from dflash.kernels.ragged import PENDING
from dflash.model.load_mtp import load_mtp
from dflash.model.mtp import Ask

if TYPE_CHECKING:
    from dflash.decode.session import Session
    from dflash.model.batch import Forward
    from dflash.model.candidates import Candidates
    from dflash.model.mtp import MtpHead
    from dflash.model.state import Snapshot

DEPTH = 3
"""Tokens to guess where the shape leaves that open: each costs a pass of the head, and is right less often."""


@dataclass(frozen=True)
class MTP(Drafter):
    """Let the MTP head of the model's file guess, a token after another; under a tree its first choices are followed.

    Parameters
    ----------
    file : str, optional
        A file that holds the head, if the model's own does not.
    """

    file: str | None = None

    def prepare(self, model: Any) -> None:
        """Load the head."""
        if self not in model.companions:
            model.companions[self] = load_mtp(model, self.file)

    def start(self, session: Session, model: Any, snapshot: _Memory | None = None) -> Drafting:
        """Hold all the memory that the session may need."""
        self.prepare(model)
        return _Mtp(model.companions[self], session, snapshot)

    def propose(self, draftings: Sequence[_Mtp], rooms: Sequence[int]) -> list[Draft]:
        """One pass for what is new of all sessions, and one for each token to guess."""
        return _propose(draftings, rooms)


def _propose(draftings: Sequence[_Mtp], rooms: Sequence[int]) -> list[Draft]:
    asks = [drafting.ask(room) for drafting, room in zip(draftings, rooms, strict=True)]
    wanted = [ask for ask in asks if ask is not None]
    found = iter(draftings[0].head.propose(wanted) if wanted else ())
    return [
        EMPTY if ask is None else drafting.answer(next(found), room)
        for drafting, ask, room in zip(draftings, asks, rooms, strict=True)
    ]


class _Memory:
    """What the head knows of a text: its cache, and the trunk's states that it has not read."""

    def __init__(self, cache: Snapshot, unread: np.ndarray) -> None:
        self.cache, self.unread = cache, unread

    def close(self) -> None:
        self.cache.close()


class _Mtp:
    """Hidden state j is read together with token j + 1; so the last one waits until that token is known."""

    capture: tuple[int, ...] = ()

    def __init__(self, head: MtpHead, session: Session, memory: _Memory | None) -> None:
        self.head, self.session, self.shape = head, session, session.strategy.shape or Chain()
        self._seen = session.n_read
        self._unread = np.empty((0, head.config.width), np.float32)
        self._state = head.state()
        try:
            if memory is not None:
                self._state.restore(memory.cache)
                self._unread = memory.unread
            self._state.reserve(session.limit - 1 - session.n_read + len(self._unread))
        except BaseException:
            self._state.close()
            raise

    def propose(self, room: int) -> Draft:
        return _propose([self], [room])[0]

    def ask(self, room: int) -> Ask | None:
        """What to ask the head for; nothing if there is no room, or before it has seen a token."""
        n, width = self.shape.wants(self.shape.depth or DEPTH, room)
        if n < 1 or not len(self._unread):
            return None
        position, law = len(self.session.text), self.session.picker.law
        return Ask(self._state, self._tokens(len(self._unread)), self._unread, n, law, position, width)

    def answer(self, candidates: Candidates, room: int) -> Draft:
        """Make a draft of what the head says, which has read everything now."""
        self._unread = self._unread[:0]
        return self.shape.draft(candidates, room)

    def observe(self, out: Forward, rows: Rows) -> None:
        new = out.hidden[rows]
        self._seen += len(new)
        self._unread = np.concatenate([self._unread, new])
        if len(self._unread) > PENDING:
            # all of a prompt but its end, or what came while nobody asked
            self.head.read(self._state, self._tokens(len(self._unread) - 1), self._unread[:-1])
            self._unread = self._unread[-1:].copy()

    def snapshot(self) -> _Memory:
        return _Memory(self._state.snapshot(), self._unread)

    def close(self) -> None:
        self._state.close()

    def _tokens(self, n: int) -> np.ndarray:
        """The first `n` tokens that the head has not read."""
        first = self._seen - len(self._unread) + 1
        return np.array(self.session.text[first : first + n], np.int32)
