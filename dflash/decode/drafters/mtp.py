"""Guess with the head that a model was trained with for that: multi-token prediction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dflash.decode.drafters.diagnostics import Health
from dflash.decode.drafters.loading import LoadingDrafter
from dflash.decode.drafters.vocab_tracker import Usual
from dflash.decode.drafting.device_draft import DeferredDraft, may_wait
from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import Drafting, Follow, Foreseen, Rows
from dflash.decode.drafting.shapes import Chain
from dflash.decode.settings import spelled
from dflash.kernels.ragged import PENDING
from dflash.model.draft import Wish
from dflash.model.load_mtp import load_mtp
from dflash.model.mtp import Ask

if TYPE_CHECKING:
    from dflash.decode.session import Session
    from dflash.model.batch import Forward
    from dflash.model.candidates import Candidates
    from dflash.model.state.sequence_state import Snapshot

DEPTH = 3
"""Tokens to guess where the shape leaves that open: each costs a pass of the head, and is right less often."""


@dataclass(frozen=True, repr=False)
class MTP(LoadingDrafter):
    """Let the MTP head of the model's file guess, a token after another; under a tree its first choices are followed.

    Parameters
    ----------
    file : str, optional
        A file that holds the head, if the model's own does not.
    draft_vocab : int, optional
        Guess from the first so many tokens of the vocabulary, and the special ones at its end, alone; as of `DFlash`, also
        if None.
    """

    file: str | None = None
    draft_vocab: int | None = None
    __repr__ = spelled

    @property
    def source(self) -> str | None:
        """Name of the file that holds the head."""
        return self.file

    def load(self, model: Any) -> Any:
        """Load the head."""
        return load_mtp(model, self.file, draft_vocab=self.draft_vocab)

    def warm(self, companion: Any) -> Iterable[None]:
        """Capture the passes of a head on a GPU."""
        return companion.warm(DEPTH) if companion.device == "cuda" else ()

    def start(self, session: Session, model: Any, snapshot: _Memory | None = None) -> Drafting:
        """Hold all the memory that the session may need."""
        self.prepare(model)
        return _Mtp(model.companions[self], session, Health(session, model, repr(self)), snapshot)

    def propose(self, draftings: Sequence[_Mtp], rooms: Sequence[int]) -> list[Draft]:
        """One pass for what is new of all sessions, and one for each token to guess."""
        return _propose(draftings, rooms)

    def foresee(self, draftings: Sequence[_Mtp], drafts: Sequence[Draft]) -> list[Foreseen]:  # noqa: ARG002
        """On a GPU it goes on."""
        return [drafting.foresee() for drafting in draftings]


def _propose(draftings: Sequence[_Mtp], rooms: Sequence[int]) -> list[Draft]:
    deferred = _deferred(draftings, rooms)
    if deferred is not None:
        return deferred
    asks = [drafting.ask(room) for drafting, room in zip(draftings, rooms, strict=True)]
    wanted = [ask for ask in asks if ask is not None]
    found = iter(draftings[0].head.propose(wanted) if wanted else ())
    return [
        EMPTY if ask is None else drafting.answer(next(found), room)
        for drafting, ask, room in zip(draftings, asks, rooms, strict=True)
    ]


def _deferred(draftings: Sequence[_Mtp], rooms: Sequence[int]) -> list[Draft] | None:
    """Drafts that a GPU is still making, where it can and nobody must see them before they are verified."""
    head, few = draftings[0].head, min(len(drafting.unread) for drafting in draftings) < 1
    if head.device == "cpu" or min(rooms) < 1 or few or not all(may_wait(drafting.session) for drafting in draftings):
        return None
    wishes, anchors = [d.wish() for d in draftings], [d.session.text[-1] for d in draftings]
    guesses = head.ready(wishes, anchors) if all(d.is_read for d in draftings) else None
    guesses = guesses or head.guess(wishes, anchors, [d.new() for d in draftings])
    if guesses is None:
        return None
    for drafting, wish, room in zip(draftings, wishes, rooms, strict=True):
        drafting.all_read()
        drafting.guessed(min(wish.nodes, room))
    return [
        DeferredDraft(guesses, i, min(wish.nodes, room), chain=wish.nodes <= wish.positions)
        for i, (wish, room) in enumerate(zip(wishes, rooms, strict=True))
    ]


class _Memory:
    """What the head knows of a text: its cache, and the trunk's states that it has not read."""

    def __init__(self, cache: Snapshot, unread: Any) -> None:
        self.cache, self.unread = cache, unread

    def close(self) -> None:
        self.cache.close()


class _Mtp:
    """Hidden state j is read together with token j + 1; so the last one waits until that token is known.

    Attributes
    ----------
    unread : float32 (n, D)
        Hidden states that the head has not read. Of those that a GPU has read ahead the last stays until guesses are made
        of it, where it lies, to be read again if they are not.
    is_read : bool
        Whether that is so: nothing came since.
    """

    capture: tuple[int, ...] = ()

    def __init__(self, head: Any, session: Session, health: Health, memory: _Memory | None) -> None:
        self.head, self.session, self.shape = head, session, session.strategy.shape or Chain()
        self._health, self._seen, self.is_read = health, session.n_read, False
        self._usual = Usual(head.common, head.config.n_vocab, session.guessed_from)
        self.unread = head.join([])
        self._state = head.state()
        try:
            if memory is not None:
                self._state.restore(memory.cache)
                self.unread = memory.unread
            self._state.reserve(session.limit - 1 - session.n_read + len(self.unread))
        except BaseException:
            self._state.close()
            raise

    def propose(self, room: int) -> Draft:
        return _propose([self], [room])[0]

    def ask(self, room: int) -> Ask | None:
        """What to ask the head for; nothing if there is no room, or before it has seen a token."""
        n, width = self.shape.wants(self.shape.depth or DEPTH, room)
        if n < 1 or not len(self.unread):
            return None
        position, law, (tokens, hidden) = len(self.session.text), self.session.picker.law, self.new()
        return Ask(self._state, tokens, hidden, n, law, position, width, self._usual.does(self.session.text))

    def wish(self) -> Wish:
        """What to ask a head on a GPU for, whatever room there is: the first guesses of a tree are one, too."""
        n, width = self.shape.wants(self.shape.depth or DEPTH, PENDING - 1)
        nodes = n if width == 1 else min(self.shape.budget, PENDING - 1)
        return Wish(self._state, self.session.picker.law, n, width, nodes, self._usual.does(self.session.text))

    def foresee(self) -> Foreseen:
        """What a head on a GPU can begin, once it has read all that is text."""
        if self.head.device == "cpu":
            return None
        if len(self.unread) and not self.is_read:
            self.head.read(self._state, self._tokens(len(self.unread)), self.unread)
            self.all_read()
        return Follow(self.head, self.wish())

    def new(self) -> tuple[np.ndarray, Any]:
        """Tokens to be read, and the hidden states before them."""
        if self.is_read:
            self._state.cut(self._state.length - 1)
            self.is_read = False
        return self._tokens(len(self.unread)), self.unread

    def all_read(self) -> None:
        """There is nothing new any more."""
        self.unread, self.is_read = self.unread[:0], False

    def answer(self, candidates: Candidates, room: int) -> Draft:
        """Make a draft of what the head says, which has read everything now."""
        self.all_read()
        draft = self.shape.draft(candidates, room)
        self.guessed(len(draft))
        return draft

    def guessed(self, n: int) -> None:
        """So many guesses are made."""
        self._health.guessed(n)
        self._usual.count()

    def observe(self, out: Forward, rows: Rows) -> None:
        if self.is_read:
            self.all_read()
        n = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        self._seen += n
        self._health.kept(n - 1)
        if self.head.told(self._state, out.hidden, n):
            last = range(len(out.hidden))[rows][-1] if isinstance(rows, slice) else rows[-1]
            self.unread, self.is_read = out.hidden[last : last + 1], True
            return
        self.unread = self.head.extended(self._state, self.unread, out.hidden, rows)
        if len(self.unread) > PENDING:
            # all of a prompt but its end, or what came while nobody asked
            self.head.read(self._state, self._tokens(len(self.unread) - 1), self.unread[:-1])
            self.unread = self.head.join([self.unread[-1:]])

    def snapshot(self) -> _Memory:
        self.new()
        return _Memory(self._state.snapshot(), self.head.join([self.unread]))

    def close(self) -> None:
        self._state.close()

    def _tokens(self, n: int) -> np.ndarray:
        """The first `n` tokens that the head has not read."""
        first = self._seen - len(self.unread) + 1
        return np.array(self.session.text[first : first + n], np.int32)
