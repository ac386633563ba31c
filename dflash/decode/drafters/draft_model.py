"""Draft with a small model of the same vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dflash.decode.drafters.model_state import ModelDrafter, ModelDrafterState
from dflash.decode.drafting.diagnostics import DraftDiagnostics
from dflash.decode.drafting.drafter import Rows
from dflash.decode.drafting.shapes import Chain
from dflash.decode.engine import Engine
from dflash.decode.registry import register
from dflash.decode.settings import spelled
from dflash.decode.shared_prefix import n_shared
from dflash.decode.warmup import warm
from dflash.model.batch import Span
from dflash.model.candidates import Candidates, put
from dflash.model.loading.draft_model import Small, load_small
from dflash.model.loading.target import loaded_model
from dflash.model.state.sequence_state import Snapshot

if TYPE_CHECKING:
    from dflash.decode.step import Step
    from dflash.decode.view import SessionView
    from dflash.model.batch import Forward
    from dflash.model.cuda.model import DeviceModel
    from dflash.model.model import Model
    from dflash.model.protocols.target import TargetModel
    from dflash.model.state.host_arrays import HostArrays
    from dflash.model.state.sequence_state import State

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
class DraftModel(ModelDrafter["_DraftModelState"]):
    """Draft with a small model, one forward for each draft token.

    In a tree, the model continues from the likeliest token of each position.

    Parameters
    ----------
    model : str
        A GGUF file with the same tokenizer: a name as for `dflash.load`.
    draft_device : str, optional
        Device of the small model: ``"cpu"``, or that of the target, which is the default.
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

    def snapshot_from_host(self, model: TargetModel, arrays: HostArrays) -> Snapshot:
        """See `Drafter`."""
        return Snapshot.from_host(model.attachments[self].model.pools, arrays)

    def can_start_at(self, model: TargetModel, n_prompt: int, length: int, snapshot: Any = None) -> bool:  # noqa: ARG002
        """Return True: the small model reads the tokens that its state lacks."""
        return True

    def start(self, session: SessionView, model: TargetModel, snapshot: Snapshot | None = None) -> _DraftModelState:
        """Take a sequence of the small model for the session."""
        small, _, diagnostics = self.attached(session, model)
        return _DraftModelState(small.model, model.n_vocab, session, diagnostics, snapshot)


class _DraftModelState(ModelDrafterState):
    """State of the small model for one session.

    The rows of draft tokens stay pending until the next draft; those that were accepted are committed then. A recurrent
    state cannot be truncated, so each forward reads the earlier draft tokens again. That costs little beside the weights.
    """

    draft_model: Model | DeviceModel
    state: State

    def __init__(
        self,
        small: Model | DeviceModel,
        n_vocab: int,
        session: SessionView,
        diagnostics: DraftDiagnostics,
        snapshot: Snapshot | None,
    ) -> None:
        super().__init__(small, session, diagnostics)
        self.on_device = False  # each draft token is an input of the next forward, made on the host
        self.n_vocab = n_vocab
        self.draft_ids: list[int] = []
        with self.owned(small.state()):
            if snapshot is not None:
                self.state.restore(snapshot)

    def reserve(self, length: int) -> None:
        """See `DrafterState`."""
        self.state.reserve(min(length, self.draft_model.config.context) - self.state.length)

    def request(self, max_draft: int) -> tuple[int, int] | None:
        """Return the number of draft tokens and of candidates for each."""
        max_draft = min(max_draft, self.draft_model.config.context - len(self.session.token_ids))
        n, width = self.wants(self.shape.depth or DEPTH, max_draft)
        return (n, width) if n > 0 else None

    @staticmethod
    def candidates(drafter_states: Sequence[_DraftModelState], requests: Sequence[tuple[int, int]]) -> list[Candidates]:
        """Run one forward over the new tokens of all sessions, then one for each further draft token."""
        found = [Candidates.nothing(*request) for request in requests]
        spans = [drafter_state.fresh() for drafter_state in drafter_states]
        going, depth = list(range(len(found))), 0
        while going:
            _fill([found[i] for i in going], [drafter_states[i] for i in going], [spans[i] for i in going], depth)
            if depth == 0:
                for i in going:
                    drafter_states[i].state.commit(range(len(spans[i].tokens)))
            depth += 1
            going = [i for i in going if requests[i][0] > depth and found[i].ids[depth - 1, 0] >= 0]
            for i in going:
                draft_ids = found[i].ids[:depth, 0].copy()
                spans[i] = Span.chain(drafter_states[i].state, draft_ids)
                drafter_states[i].draft_ids = draft_ids.tolist()
        return found

    def observe(self, step: Step, out: Forward, rows: Rows) -> None:  # noqa: ARG002
        session = self.session
        self.count_rows(rows)
        stop = session.n_prefilled if session.n_prefilled < session.n_prompt - 1 else len(session.token_ids) - 1
        if stop - self.state.length > self.draft_model.config.pending:
            self.commit_accepted()
            self.read(stop)

    def commit_accepted(self) -> None:
        """Commit the rows of accepted draft tokens. The last token of the sequence remains to be read."""
        if self.draft_ids:
            new = self.session.token_ids[self.state.length : -1]
            self.state.commit(range(n_shared(new, self.draft_ids)))
        self.draft_ids = []

    def read(self, stop: int) -> None:
        """Prefill the sequence up to a length, at most the context of the small model."""
        stop = min(stop, self.draft_model.config.context)
        while self.state.length < stop:
            start = self.state.length
            tokens = self.session.token_ids[start : min(start + self.draft_model.prefill_chunk, stop)]
            self.draft_model.forward([Span.chain(self.state, tokens, prefill=True, logits=False)])

    def fresh(self) -> Span:
        """Return a span of all tokens not read yet: at least the last one, at most as many as may be pending."""
        self.commit_accepted()
        if len(self.session.token_ids) - self.state.length > self.draft_model.config.pending:
            self.read(len(self.session.token_ids) - 1)
        return Span.chain(self.state, self.session.token_ids[self.state.length :])

    def snapshot(self) -> Snapshot:
        self.commit_accepted()
        return self.state.snapshot()


def _fill(found: list[Candidates], drafter_states: list[_DraftModelState], spans: list[Span], depth: int) -> None:
    """Fill in the candidates of several sessions at one more position."""
    out = drafter_states[0].draft_model.forward(spans)
    last = np.cumsum([len(span.tokens) for span in spans]) - 1
    if not isinstance(out.logits, np.ndarray) and out.logits.shape[1] == drafter_states[0].n_vocab:
        width, row_params = max(each.ids.shape[1] for each in found), [each.params for each in drafter_states]
        places = [len(each.session.token_ids) + depth for each in drafter_states]
        put(found, depth, *out.logits.candidates(last.tolist(), row_params, places, width))
        return
    logits = np.ascontiguousarray(np.asarray(out.logits)[last, : drafter_states[0].n_vocab])
    ModelDrafterState.fill(drafter_states, found, depth, logits)
