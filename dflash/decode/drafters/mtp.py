"""Guess with the head that a model was trained with for that: multi-token prediction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dflash.decode.drafters.diagnostics import DraftDiagnostics
from dflash.decode.drafters.loading import LoadingDrafter
from dflash.decode.drafters.vocab_tracker import VocabTracker
from dflash.decode.drafting.device_draft import DeferredDraft, can_defer
from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import DrafterState, LaunchDraft, NextStep, Rows
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.drafting.shapes.tree import BUDGET
from dflash.decode.registry import register
from dflash.decode.settings import spelled
from dflash.kernels.ragged import PENDING
from dflash.model.draft import DeviceDraftRequest
from dflash.model.load_mtp import load_mtp
from dflash.model.mtp import MtpRequest

if TYPE_CHECKING:
    from dflash.decode.view import SessionView
    from dflash.model.batch import Forward
    from dflash.model.candidates import Candidates
    from dflash.model.state.sequence_state import Snapshot

DEPTH = 3
"""Tokens to guess where the shape leaves that open: each costs a pass of the head, and is right less often."""


_DRAFT_OPTIONS = {"draft": "file", "draft_vocab": "draft_vocab"}


@register("mtp-tree", number="NODES", shape=Tree, default=BUDGET, takes=_DRAFT_OPTIONS, spare_draft=True)
@register("mtp", number="DEPTH", shape=Chain, takes=_DRAFT_OPTIONS, spare_draft=True)
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

    def start(self, session: SessionView, model: Any, snapshot: _MtpSnapshot | None = None) -> DrafterState:
        """Hold all the memory that the session may need."""
        self.prepare(model)
        return _MtpState(model.attachments[self], session, DraftDiagnostics(session, model, repr(self)), snapshot)

    def propose(self, drafter_states: Sequence[_MtpState], max_drafts: Sequence[int]) -> list[Draft]:
        """One pass for what is new of all sessions, and one for each token to guess."""
        return _propose(drafter_states, max_drafts)

    def plan_next(self, drafter_states: Sequence[_MtpState], drafts: Sequence[Draft]) -> list[NextStep]:  # noqa: ARG002
        """On a GPU it goes on."""
        return [drafter_state.plan_next() for drafter_state in drafter_states]


def _propose(drafter_states: Sequence[_MtpState], max_drafts: Sequence[int]) -> list[Draft]:
    deferred = _deferred(drafter_states, max_drafts)
    if deferred is not None:
        return deferred
    requests = [
        drafter_state.request(max_draft) for drafter_state, max_draft in zip(drafter_states, max_drafts, strict=True)
    ]
    wanted = [request for request in requests if request is not None]
    found = iter(drafter_states[0].head.propose(wanted) if wanted else ())
    return [
        EMPTY if request is None else drafter_state.answer(next(found), max_draft)
        for drafter_state, request, max_draft in zip(drafter_states, requests, max_drafts, strict=True)
    ]


def _deferred(drafter_states: Sequence[_MtpState], max_drafts: Sequence[int]) -> list[Draft] | None:
    """Drafts that a GPU is still making, where it can and nobody must see them before they are verified."""
    head, few = drafter_states[0].head, min(len(drafter_state.unread) for drafter_state in drafter_states) < 1
    if (
        head.device == "cpu"
        or min(max_drafts) < 1
        or few
        or not all(can_defer(drafter_state.session) for drafter_state in drafter_states)
    ):
        return None
    device_requests, anchors = (
        [d.device_request() for d in drafter_states],
        [d.session.token_ids[-1] for d in drafter_states],
    )
    guesses = head.ready(device_requests, anchors) if all(d.is_read for d in drafter_states) else None
    guesses = guesses or head.guess(device_requests, anchors, [d.new() for d in drafter_states])
    if guesses is None:
        return None
    for drafter_state, device_request, max_draft in zip(drafter_states, device_requests, max_drafts, strict=True):
        drafter_state.all_read()
        drafter_state.guessed(min(device_request.nodes, max_draft))
    return [
        DeferredDraft(
            guesses, i, min(device_request.nodes, max_draft), chain=device_request.nodes <= device_request.positions
        )
        for i, (device_request, max_draft) in enumerate(zip(device_requests, max_drafts, strict=True))
    ]


class _MtpSnapshot:
    """What the head knows of a text: its cache, and the trunk's states that it has not read."""

    def __init__(self, cache: Snapshot, unread: Any) -> None:
        self.cache, self.unread = cache, unread

    def close(self) -> None:
        self.cache.close()


class _MtpState:
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

    def __init__(self, head: Any, session: SessionView, health: DraftDiagnostics, memory: _MtpSnapshot | None) -> None:
        self.head, self.session, self.shape = head, session, session.strategy.shape or Chain()
        self._health, self._seen, self.is_read = health, session.n_prefilled, False
        self._vocab_tracker = VocabTracker(head.draft_vocabs, head.config.n_vocab, session.draft_vocab_steps)
        self.unread = head.join([])
        self._state = head.state()
        try:
            if memory is not None:
                self._state.restore(memory.cache)
                self.unread = memory.unread
            self._state.reserve(session.max_length - 1 - session.n_prefilled + len(self.unread))
        except BaseException:
            self._state.close()
            raise

    def propose(self, max_draft: int) -> Draft:
        return _propose([self], [max_draft])[0]

    def request(self, max_draft: int) -> MtpRequest | None:
        """What to ask the head for; nothing if there is no room, or before it has seen a token."""
        n, width = self.shape.wants(self.shape.depth or DEPTH, max_draft)
        if n < 1 or not len(self.unread):
            return None
        position, params, (tokens, hidden) = len(self.session.token_ids), self.session.sampler.params, self.new()
        return MtpRequest(
            self._state, tokens, hidden, n, params, position, width, self._vocab_tracker.select(self.session.token_ids)
        )

    def device_request(self) -> DeviceDraftRequest:
        """What to ask a head on a GPU for, whatever room there is: the first guesses of a tree are one, too."""
        n, width = self.shape.wants(self.shape.depth or DEPTH, PENDING - 1)
        nodes = n if width == 1 else min(self.shape.budget, PENDING - 1)
        return DeviceDraftRequest(
            self._state, self.session.sampler.params, n, width, nodes, self._vocab_tracker.select(self.session.token_ids)
        )

    def plan_next(self) -> NextStep:
        """What a head on a GPU can begin, once it has read all that is text."""
        if self.head.device == "cpu":
            return None
        if len(self.unread) and not self.is_read:
            self.head.read(self._state, self._tokens(len(self.unread)), self.unread)
            self.all_read()
        return LaunchDraft(self.head, self.device_request())

    def new(self) -> tuple[np.ndarray, Any]:
        """Tokens to be read, and the hidden states before them."""
        if self.is_read:
            self._state.cut(self._state.length - 1)
            self.is_read = False
        return self._tokens(len(self.unread)), self.unread

    def all_read(self) -> None:
        """There is nothing new any more."""
        self.unread, self.is_read = self.unread[:0], False

    def answer(self, candidates: Candidates, max_draft: int) -> Draft:
        """Make a draft of what the head says, which has read everything now."""
        self.all_read()
        draft = self.shape.draft(candidates, max_draft)
        self.guessed(len(draft))
        return draft

    def guessed(self, n: int) -> None:
        """So many guesses are made."""
        self._health.guessed(n)
        self._vocab_tracker.count()

    def observe(self, out: Forward, rows: Rows) -> None:
        if self.is_read:
            self.all_read()
        n = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        self._seen += n
        self._health.kept(n - 1)
        if self.head.record_accepted(self._state, out.hidden, n):
            last = range(len(out.hidden))[rows][-1] if isinstance(rows, slice) else rows[-1]
            self.unread, self.is_read = out.hidden[last : last + 1], True
            return
        self.unread = self.head.extended(self._state, self.unread, out.hidden, rows)
        if len(self.unread) > PENDING:
            # all of a prompt but its end, or what came while nobody asked
            self.head.read(self._state, self._tokens(len(self.unread) - 1), self.unread[:-1])
            self.unread = self.head.join([self.unread[-1:]])

    def snapshot(self) -> _MtpSnapshot:
        self.new()
        return _MtpSnapshot(self._state.snapshot(), self.head.join([self.unread]))

    def close(self) -> None:
        self._state.close()

    def _tokens(self, n: int) -> np.ndarray:
        """The first `n` tokens that the head has not read."""
        first = self._seen - len(self.unread) + 1
        return np.array(self.session.token_ids[first : first + n], np.int32)
