"""Draft with a small model of the same vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dflash.decode.drafters.diagnostics import DraftDiagnostics
from dflash.decode.drafters.loading import LoadingDrafter
from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import Rows
from dflash.decode.drafting.shapes import Chain
from dflash.decode.engine import Engine
from dflash.decode.registry import register
from dflash.decode.settings import spelled
from dflash.decode.warmup import warm
from dflash.kernels.ragged import PENDING
from dflash.model.batch import Span
from dflash.model.candidates import Candidates, fill, put
from dflash.model.load import loaded_model
from dflash.model.load_small import Small, load_small

if TYPE_CHECKING:
    from dflash.decode.view import SessionView
    from dflash.model.batch import Forward
    from dflash.model.cuda.model import DeviceModel
    from dflash.model.model import Model
    from dflash.model.protocols.target import TargetModel
    from dflash.model.state.sequence_state import Snapshot

DEPTH = 4
"""Default number of draft tokens of a chain."""


@register(
    "draft-model",
    number="DEPTH",
    shape=Chain,
    takes={"draft": "model", "draft_device": "draft_device"},
    needs_draft="the file of a small model",
)
@dataclass(frozen=True, repr=False)
class DraftModel(LoadingDrafter["_DraftModelState"]):
    """Draft with a small model, one forward for each draft token.

    In a tree, the model continues from the likeliest token of each position.

    Parameters
    ----------
    model : str
        A GGUF file with the same tokenizer: a name as for `dflash.load`.
    draft_device : str, optional
        Device of the small model, ``"cpu"`` or ``"cuda"``; that of the target if None.
    """

    model: str
    draft_device: str | None = None
    __repr__ = spelled

    @property
    def source(self) -> str:
        """File or repository of the small model."""
        return self.model

    def load(self, model: TargetModel) -> Small:
        """Load the small model."""
        return load_small(loaded_model(model), self.model, self.draft_device)

    def compile(self, attachment: Small) -> None:
        """Decode a few tokens with a small model on the CPU."""
        if attachment.model.device == "cpu":
            warm(Engine(attachment.model), attachment.kind, lambda _: None)

    def start(self, session: SessionView, model: TargetModel, snapshot: Snapshot | None = None) -> _DraftModelState:
        """Reserve all memory that the session may need."""
        self.prepare(model)
        diagnostics = DraftDiagnostics(session, model, repr(self))
        return _DraftModelState(model.attachments[self].model, model.n_vocab, session, diagnostics, snapshot)

    def propose(self, drafter_states: Sequence[_DraftModelState], max_drafts: Sequence[int]) -> list[Draft]:
        """Run one forward over the new tokens of all sessions, then one for each further draft token."""
        return _propose(drafter_states, max_drafts)


class _DraftModelState:
    """State of the small model for one session.

    The rows of draft tokens stay pending until the next draft; those that were accepted are committed then. A recurrent
    state cannot be truncated, so each forward reads the earlier draft tokens again. That costs little beside the weights.
    """

    capture: tuple[int, ...] = ()

    def __init__(
        self,
        small: Model | DeviceModel,
        n_vocab: int,
        session: SessionView,
        diagnostics: DraftDiagnostics,
        snapshot: Snapshot | None,
    ) -> None:
        self.small, self.n_vocab, self.session, self.diagnostics = small, n_vocab, session, diagnostics
        self.shape = session.strategy.shape or Chain()
        self.draft_ids: list[int] = []
        self.state = small.state()
        try:
            if snapshot is not None:
                self.state.restore(snapshot)
            self.state.reserve(min(session.max_length, small.config.context) - self.state.length)
        except BaseException:
            self.state.close()
            raise

    def wants(self, max_draft: int) -> tuple[int, int]:
        """Return the number of draft tokens and of candidates for each."""
        max_draft = min(max_draft, self.small.config.context - len(self.session.token_ids))
        return self.shape.wants(self.shape.depth or DEPTH, max_draft)

    def propose(self, max_draft: int) -> Draft:
        return _propose([self], [max_draft])[0]

    def observe(self, out: Forward, rows: Rows) -> None:  # noqa: ARG002
        session = self.session
        if not isinstance(rows, slice):
            self.diagnostics.count_accepted(len(rows) - 1)
        stop = session.n_prefilled if session.n_prefilled < session.n_prompt - 1 else len(session.token_ids) - 1
        if stop - self.state.length > PENDING:
            self.commit_accepted()
            self.read(stop)

    def draft_of(self, candidates: Candidates, max_draft: int) -> Draft:
        """Return the draft made from candidates."""
        draft = self.shape.draft(candidates, max_draft)
        self.diagnostics.count_draft(len(draft))
        return draft

    def commit_accepted(self) -> None:
        """Commit the rows of accepted draft tokens. The last token of the sequence remains to be read."""
        length, new = self.state.length, self.session.token_ids[self.state.length : -1]
        n_accepted = 0
        while n_accepted < min(len(new), len(self.draft_ids)) and new[n_accepted] == self.draft_ids[n_accepted]:
            n_accepted += 1
        if self.draft_ids:
            self.state.commit(range(n_accepted))
        self.draft_ids = []
        assert self.state.length == length + n_accepted

    def read(self, stop: int) -> None:
        """Prefill the sequence up to a length, at most the context of the small model."""
        stop = min(stop, self.small.config.context)
        while self.state.length < stop:
            start = self.state.length
            tokens = self.session.token_ids[start : min(start + self.small.prefill_chunk, stop)]
            self.small.forward(
                [Span(self.state, np.array(tokens, np.int32), _chain(len(tokens)), prefill=True, logits=False)]
            )

    def fresh(self) -> Span:
        """Return a span of all tokens not read yet: at least the last one, at most `PENDING`."""
        self.commit_accepted()
        if len(self.session.token_ids) - self.state.length > PENDING:
            self.read(len(self.session.token_ids) - 1)
        tokens = np.array(self.session.token_ids[self.state.length :], np.int32)
        return Span(self.state, tokens, _chain(len(tokens)))

    def snapshot(self) -> Snapshot:
        self.commit_accepted()
        return self.state.snapshot()

    def close(self) -> None:
        self.state.close()


def _propose(drafter_states: Sequence[_DraftModelState], max_drafts: Sequence[int]) -> list[Draft]:
    wants = [drafter_state.wants(max_draft) for drafter_state, max_draft in zip(drafter_states, max_drafts, strict=True)]
    going = [i for i, (n, _) in enumerate(wants) if n > 0]
    found = {i: Candidates.nothing(*wants[i]) for i in going}
    spans = {i: drafter_states[i].fresh() for i in going}
    depth = 0
    while going:
        _fill([found[i] for i in going], [drafter_states[i] for i in going], [spans[i] for i in going], depth)
        if depth == 0:
            for i in going:
                drafter_states[i].state.commit(range(len(spans[i].tokens)))
        depth += 1
        going = [i for i in going if wants[i][0] > depth and found[i].ids[depth - 1, 0] >= 0]
        for i in going:
            draft_ids = found[i].ids[:depth, 0].copy()
            spans[i] = Span(drafter_states[i].state, draft_ids, _chain(depth))
            drafter_states[i].draft_ids = draft_ids.tolist()
    return [
        drafter_state.draft_of(found[i], max_drafts[i]) if i in found else EMPTY
        for i, drafter_state in enumerate(drafter_states)
    ]


def _fill(found: list[Candidates], drafter_states: list[_DraftModelState], spans: list[Span], depth: int) -> None:
    """Fill in the candidates of several sessions at one more position."""
    out = drafter_states[0].small.forward(spans)
    last = np.cumsum([len(span.tokens) for span in spans]) - 1
    sessions = [drafter_state.session for drafter_state in drafter_states]
    if not isinstance(out.logits, np.ndarray) and out.logits.shape[1] == drafter_states[0].n_vocab:
        width, row_params = max(each.ids.shape[1] for each in found), [session.sampler.params for session in sessions]
        places = [len(session.token_ids) + depth for session in sessions]
        put(found, depth, *out.logits.candidates(last.tolist(), row_params, places, width))
        return
    logits = np.ascontiguousarray(np.asarray(out.logits)[last, : drafter_states[0].n_vocab])
    fill(
        found,
        depth,
        logits,
        [session.sampler.params for session in sessions],
        [len(session.token_ids) for session in sessions],
    )


def _chain(n: int) -> np.ndarray:
    return np.arange(-1, n - 1, dtype=np.int32)
