"""Draft with the multi-token prediction (MTP) head of the target."""

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
from dflash.decode.drafting.drafter import LaunchDraft, NextStep, Rows
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.drafting.shapes.tree import BUDGET
from dflash.decode.registry import register
from dflash.decode.settings import spelled
from dflash.kernels.ragged import PENDING
from dflash.model.draft import DeviceDraftRequest
from dflash.model.load import loaded_model
from dflash.model.load_mtp import load_mtp
from dflash.model.mtp import MtpRequest

if TYPE_CHECKING:
    from dflash.decode.view import SessionView
    from dflash.model.batch import Forward
    from dflash.model.candidates import Candidates
    from dflash.model.cuda.mtp import DeviceMtpHead
    from dflash.model.mtp import MtpHead
    from dflash.model.protocols.target import TargetModel
    from dflash.model.state.sequence_state import Snapshot, State

DEPTH = 3
"""Default number of draft tokens: each costs a pass of the head and is accepted less often than the one before it."""


_DRAFT_OPTIONS = {"draft": "file", "draft_vocab": "draft_vocab"}


@register("mtp-tree", number="NODES", shape=Tree, default=BUDGET, takes=_DRAFT_OPTIONS, spare_draft=True)
@register("mtp", number="DEPTH", shape=Chain, takes=_DRAFT_OPTIONS, spare_draft=True)
@dataclass(frozen=True, repr=False)
class MTP(LoadingDrafter["_MtpState"]):
    """Draft with the MTP head of the model's file, one pass for each draft token.

    In a tree, the head continues from the likeliest token of each position.

    Parameters
    ----------
    file : str, optional
        A file that holds the head, if the model's own does not.
    draft_vocab : int, optional
        Size of the draft vocabulary, as for `DFlash`, also if None.
    """

    file: str | None = None
    draft_vocab: int | None = None
    __repr__ = spelled

    @property
    def source(self) -> str | None:
        """File that holds the head."""
        return self.file

    def load(self, model: TargetModel) -> MtpHead | DeviceMtpHead:
        """Load the head."""
        return load_mtp(loaded_model(model), self.file, draft_vocab=self.draft_vocab)

    def warm(self, attachment: MtpHead | DeviceMtpHead) -> Iterable[None]:
        """Capture the graphs of a head on a GPU."""
        return attachment.warm(DEPTH) if attachment.device == "cuda" else ()

    def start(self, session: SessionView, model: TargetModel, snapshot: _MtpSnapshot | None = None) -> _MtpState:
        """Reserve all memory that the session may need."""
        self.prepare(model)
        return _MtpState(model.attachments[self], session, DraftDiagnostics(session, model, repr(self)), snapshot)

    def propose(self, drafter_states: Sequence[_MtpState], max_drafts: Sequence[int]) -> list[Draft]:
        """Run one pass over the new tokens of all sessions, then one for each further draft token."""
        return _propose(drafter_states, max_drafts)

    def plan_next(self, drafter_states: Sequence[_MtpState], drafts: Sequence[Draft]) -> list[NextStep]:  # noqa: ARG002
        """Plan the next draft on a GPU."""
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
        EMPTY if request is None else drafter_state.draft_of(next(found), max_draft)
        for drafter_state, request, max_draft in zip(drafter_states, requests, max_drafts, strict=True)
    ]


def _deferred(drafter_states: Sequence[_MtpState], max_drafts: Sequence[int]) -> list[Draft] | None:
    """Return drafts that stay on the GPU until verification; None if the host needs them or the GPU cannot make them."""
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
        drafter_state.count_draft(min(device_request.nodes, max_draft))
    return [
        DeferredDraft(
            guesses, i, min(device_request.nodes, max_draft), chain=device_request.nodes <= device_request.positions
        )
        for i, (device_request, max_draft) in enumerate(zip(device_requests, max_drafts, strict=True))
    ]


class _MtpSnapshot:
    """Cache of the head and the target's hidden states that it has not read."""

    def __init__(self, cache: Snapshot, unread: Any) -> None:
        self.cache, self.unread = cache, unread

    def close(self) -> None:
        self.cache.close()


class _MtpState:
    """State of the head for one session.

    The head reads hidden state j together with token j + 1, so the last hidden state waits until that token is known.

    Attributes
    ----------
    unread : float32 (n, D)
        Hidden states that the head has not read. If the GPU has read the last one ahead, it stays here until a draft is
        made from it. If none is made, the head reads it again.
    is_read : bool
        True if the GPU has read the only state of `unread` ahead.
    """

    capture: tuple[int, ...] = ()

    def __init__(
        self,
        head: MtpHead | DeviceMtpHead,
        session: SessionView,
        diagnostics: DraftDiagnostics,
        snapshot: _MtpSnapshot | None,
    ) -> None:
        self.head, self.session, self.shape = head, session, session.strategy.shape or Chain()
        self._diagnostics, self._seen, self.is_read = diagnostics, session.n_prefilled, False
        self._vocab_tracker = VocabTracker(head.draft_vocabs, head.config.n_vocab, session.draft_vocab_steps)
        self.unread = head.join([])
        self._state = head.state()
        try:
            if snapshot is not None:
                self._state.restore(snapshot.cache)
                self.unread = snapshot.unread
            self._state.reserve(session.max_length - 1 - session.n_prefilled + len(self.unread))
        except BaseException:
            self._state.close()
            raise

    def propose(self, max_draft: int) -> Draft:
        return _propose([self], [max_draft])[0]

    def request(self, max_draft: int) -> MtpRequest | None:
        """Return the request for a draft; None if there is room for no token, or no hidden state was observed yet."""
        n, width = self.shape.wants(self.shape.depth or DEPTH, max_draft)
        if n < 1 or not len(self.unread):
            return None
        position, params, (tokens, hidden) = len(self.session.token_ids), self.session.sampler.params, self.new()
        return MtpRequest(
            self._state, tokens, hidden, n, params, position, width, self._vocab_tracker.select(self.session.token_ids)
        )

    def device_request(self) -> DeviceDraftRequest[State]:
        """Return the request for a draft of full size on a GPU. The first tokens of a tree form a tree."""
        n, width = self.shape.wants(self.shape.depth or DEPTH, PENDING - 1)
        nodes = n
        if width > 1:
            assert isinstance(self.shape, Tree), "a chain has one candidate for each position"
            nodes = min(self.shape.budget, PENDING - 1)
        return DeviceDraftRequest(
            self._state, self.session.sampler.params, n, width, nodes, self._vocab_tracker.select(self.session.token_ids)
        )

    def plan_next(self) -> NextStep:
        """Let a head on a GPU read all accepted tokens and return the plan for its next draft; None on the CPU."""
        if self.head.device == "cpu":
            return None
        if len(self.unread) and not self.is_read:
            self.head.read(self._state, self._tokens(len(self.unread)), self.unread)
            self.all_read()
        return LaunchDraft(self.head, self.device_request())

    def new(self) -> tuple[np.ndarray, Any]:
        """Return the tokens to read and the hidden states before them."""
        if self.is_read:
            self._state.cut(self._state.length - 1)
            self.is_read = False
        return self._tokens(len(self.unread)), self.unread

    def all_read(self) -> None:
        """Drop the hidden states that the head has read."""
        self.unread, self.is_read = self.unread[:0], False

    def draft_of(self, candidates: Candidates, max_draft: int) -> Draft:
        """Return the draft made from candidates, after the head has read everything."""
        self.all_read()
        draft = self.shape.draft(candidates, max_draft)
        self.count_draft(len(draft))
        return draft

    def count_draft(self, n: int) -> None:
        """Count a draft of `n` tokens in diagnostics and vocabulary statistics."""
        self._diagnostics.count_draft(n)
        self._vocab_tracker.count()

    def observe(self, out: Forward, rows: Rows) -> None:
        if self.is_read:
            self.all_read()
        n = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        self._seen += n
        self._diagnostics.count_accepted(n - 1)
        if self.head.record_accepted(self._state, out.hidden, n):
            last = range(len(out.hidden))[rows][-1] if isinstance(rows, slice) else rows[-1]
            self.unread, self.is_read = out.hidden[last : last + 1], True
            return
        self.unread = self.head.extended(self._state, self.unread, out.hidden, rows)
        if len(self.unread) > PENDING:
            # a chunk of the prompt, or steps without a draft
            self.head.read(self._state, self._tokens(len(self.unread) - 1), self.unread[:-1])
            self.unread = self.head.join([self.unread[-1:]])

    def snapshot(self) -> _MtpSnapshot:
        self.new()
        return _MtpSnapshot(self._state.snapshot(), self.head.join([self.unread]))

    def close(self) -> None:
        self._state.close()

    def _tokens(self, n: int) -> np.ndarray:
        """Return the first `n` tokens that the head has not read."""
        first = self._seen - len(self.unread) + 1
        return np.array(self.session.token_ids[first : first + n], np.int32)
