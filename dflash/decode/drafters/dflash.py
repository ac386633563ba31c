"""Draft a block of tokens in one pass with a small model that reads hidden states of the target."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dflash.decode.drafters.model_state import ModelDrafter, ModelDrafterState
from dflash.decode.drafting.diagnostics import DraftDiagnostics
from dflash.decode.drafting.drafter import Rows
from dflash.decode.drafting.shapes import Chain
from dflash.decode.registry import register
from dflash.decode.settings import spelled
from dflash.kernels.ragged import PENDING
from dflash.model.draft import DraftRequest, load_draft
from dflash.model.loading.published_drafts import AT_HAND
from dflash.model.loading.target import loaded_model

if TYPE_CHECKING:
    from dflash.decode.step import Step
    from dflash.decode.view import SessionView
    from dflash.model.batch import Forward
    from dflash.model.candidates import Candidates
    from dflash.model.cuda.draft import DeviceBlockDraft
    from dflash.model.draft.model import BlockDraft
    from dflash.model.draft.state import DraftSnapshot, DraftState
    from dflash.model.protocols.device_drafter import DeviceDrafts
    from dflash.model.protocols.target import TargetModel
    from dflash.model.state.host_arrays import HostArrays

Features = dict[int, NDArray[np.float32]]

DEPTH = 7
"""Default draft tokens of a chain on a CPU. With the last token they make 8 rows; each further row costs more."""


DRAFT_OPTIONS = {name: name for name in ("draft", "draft_device", "draft_vocab")}
"""Draft options that names of `DFlash` take, each with the parameter that it sets."""


@register(
    "dspark", number="DEPTH", shape=Chain, takes=DRAFT_OPTIONS, about="Draft with a DSpark model; another name of dflash."
)
@register("dflash", number="DEPTH", shape=Chain, takes=DRAFT_OPTIONS)
@dataclass(frozen=True, repr=False)
class DFlash(ModelDrafter["_DFlashState"]):
    """Draft with a DFlash, DFlash 2 or DSpark model.

    Parameters
    ----------
    draft : str or path
        A GGUF file or a folder as published; ``demo-draft``, which comes with dflash; or ``hf:org/repo`` of the Hugging Face
        hub. It must have been trained for the target. ``auto`` finds it: beside the target's file, or in a table of
        published drafts (`dflash.model.loading.published_drafts`), which are downloaded. The default is the draft that
        ``auto`` finds, if that needs no download.
    draft_device : str, optional
        Device of the draft model: ``"cpu"``, ``"cuda"``, or a GPU as ``"cuda:1"``; that of the target if None.
    context : int, optional
        Most positions that the draft model attends to in layers without a sliding window.
    trim_block : bool
        On a CPU, make blocks no longer than the draft. Draft models are trained with whole blocks, but each row costs time:
        with 7 draft tokens the demo's model loses 1 % of the tokens a step on code and 3 % in chats.
    min_confidence : float
        A DSpark model ends the draft where its confidence falls below this probability. On a GPU this saves no row, since
        the step is launched before the confidence is known.
    draft_vocab : int, optional
        Size of the draft vocabulary: draft only the first N tokens of the vocabulary and the special tokens at its end, so
        that the head has fewer rows. Token ids roughly follow frequency, but one language comes after another. If None,
        all tokens. On a GPU with a vocabulary of 100,000 tokens and more, None means two or three fifths of it while the
        sequence stays within these, as English, code and Chinese do.

    References
    ----------
    DFlash, arXiv 2602.06036. Draft vocabulary: FR-Spec, arXiv 2502.14856; EAGLE-3, arXiv 2503.01840.
    """

    draft: str | os.PathLike[str] = AT_HAND
    draft_device: str | None = None
    context: int | None = None
    trim_block: bool = True
    min_confidence: float = 0.0
    draft_vocab: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "draft", os.fspath(self.draft))

    __repr__ = spelled

    @property
    def source(self) -> str:
        """File, folder or repository of the draft model."""
        return os.fspath(self.draft)

    def load(self, model: TargetModel) -> BlockDraft | DeviceBlockDraft:
        """Load the draft model."""
        settings = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("draft", "draft_device")}
        return load_draft(self.draft, loaded_model(model), device=self.draft_device, sequences=model.pools.slots, **settings)

    def warm(self, attachment: BlockDraft | DeviceBlockDraft) -> Iterable[None]:
        """Capture the graphs of a draft model on a GPU."""
        return attachment.warm() if attachment.device == "cuda" else ()

    def snapshot_from_host(self, model: TargetModel, arrays: HostArrays) -> DraftSnapshot:
        """See `Drafter`."""
        with closing(model.attachments[self].state()) as state:
            return state.rings.snapshot_from_host(arrays)

    def can_start_at(self, model: TargetModel, n_prompt: int, length: int, snapshot: DraftSnapshot | None = None) -> bool:
        """Return True if the snapshot and the tokens after `length` hold all positions that the draft model attends to."""
        first = max(n_prompt - 1 - model.attachments[self].reach, 0)
        return length <= first or (snapshot is not None and snapshot.begin <= first)

    def end_step(self, drafter_states: Sequence[_DFlashState]) -> None:
        """Let the draft model read the rows that all sessions noted, together."""
        read_noted(drafter_states)

    def start(self, session: SessionView, model: TargetModel, snapshot: DraftSnapshot | None = None) -> _DFlashState:
        """Take a context of the draft model for the session."""
        return _DFlashState(*self.attached(session, model), snapshot)


def DSpark(draft: str, **settings: Any) -> DFlash:  # noqa: N802
    """Draft with a DSpark model, which `DFlash` runs, too."""
    return DFlash(draft, **settings)


class _DFlashState(ModelDrafterState):
    """Context of the draft model for one session.

    On the CPU, features of accepted rows are collected, and the draft model reads those of all sessions together before it
    drafts. Those of long prompts, and all on a GPU, it reads at the end of the step, before they are overwritten.

    unread: list of dict of int to float32 (n, D); Features by target layer that the draft model has not read, of at most
        `PENDING` rows.
    noted: features of a forward, and the rows of them that `end_step` reads; None if there are none.
    """

    draft_model: BlockDraft | DeviceBlockDraft
    state: DraftState

    def __init__(
        self,
        draft: BlockDraft | DeviceBlockDraft,
        session: SessionView,
        diagnostics: DraftDiagnostics,
        snapshot: DraftSnapshot | None,
    ) -> None:
        super().__init__(draft, session, diagnostics, draft.draft_vocabs, draft.config.n_vocab)
        self.capture: tuple[int, ...] = draft.config.target_layer_ids
        self.unread: list[Features] = []
        self._n_unread = 0
        self.noted: tuple[Features, Rows] | None = None
        # the draft model attends to `reach` positions only: it need not read what is further from the prompt's end, and from
        # the states that the prefix cache saves
        known = snapshot if session.n_prompt - 1 - draft.reach <= session.n_prefilled else None
        first = min([*session.snapshot_at, session.n_prompt - 1]) - draft.reach
        with self.owned(draft.state(max(first, session.n_prefilled) if known is None else 0)):
            if known is not None:
                self.state.restore(known)

    def request(self, max_draft: int) -> DraftRequest | None:
        """Return the request for a draft; None if there is room for no draft token."""
        most = self.draft_model.config.max_draft
        if not self.on_device and self.shape == Chain():
            most = min(most, DEPTH)
        n, width = self.wants(most, max_draft)
        if n < 1:
            return None
        ids = self.session.token_ids
        return DraftRequest(self.state, ids[-1], n, self.params, width, self._vocab_tracker.select(ids))

    def device_request(self) -> tuple[DraftRequest[DraftState], int]:
        """Return the request for a draft on a GPU, and the number of its tokens to use.

        A chain is requested with the whole block, which costs nothing, so that one captured graph serves every depth.
        """
        most = self.draft_model.config.max_draft
        request, n = self.request_on_device(most)
        return (request._replace(n_draft=most) if request.nodes is None else request), n

    @staticmethod
    def candidates(drafter_states: Sequence[_DFlashState], requests: Sequence[DraftRequest]) -> list[Candidates]:
        """Run the draft model once for all sessions."""
        read(drafter_states)
        return drafter_states[0].draft_model.propose(requests)

    @staticmethod
    def device_drafts(
        drafter_states: Sequence[_DFlashState], requests: Sequence[DraftRequest[DraftState]], anchors: Sequence[int]
    ) -> DeviceDrafts | None:
        """See `ModelDrafterState`."""
        draft_model = drafter_states[0].draft_model
        assert draft_model.device == "cuda", "drafts on the CPU are never deferred"
        return draft_model.draft_on_device(requests, anchors)

    def observe(self, step: Step, out: Forward, rows: Rows) -> None:  # noqa: ARG002
        read_noted([self])
        ahead = self.state.length + self._n_unread - self.n_seen
        n = self.count_rows(rows)
        skipped = min(max(ahead, 0), n)
        if skipped < n:
            rest = slice(rows.start + skipped, rows.stop) if isinstance(rows, slice) else rows[skipped:]
            self._see(out, rest, n - skipped)

    def _see(self, out: Forward, rows: Rows, n: int) -> None:
        there = type(out.hidden) is np.ndarray  # arrays of an emulated GPU are derived from NumPy's
        if there and self._n_unread + n <= PENDING:
            self.unread.append({layer: out.captured[layer][rows].copy() for layer in self.capture})
            self._n_unread += n
        else:
            read([self])
            self.noted = out.captured, rows

    def take_unread(self) -> Features:
        """Return the unread features and clear them."""
        features = {layer: np.concatenate([part[layer] for part in self.unread]) for layer in self.capture}
        self.unread, self._n_unread = [], 0
        return features

    def snapshot(self) -> DraftSnapshot | None:
        read([self])
        read_noted([self])
        return self.state.snapshot() if self.state.length == self.n_seen else None


def read(drafter_states: Sequence[_DFlashState]) -> None:
    """Let the draft model read the unread features of several sessions."""
    behind = [drafter_state for drafter_state in drafter_states if drafter_state.unread]
    if not behind:
        return
    parts = [drafter_state.take_unread() for drafter_state in behind]
    layers = behind[0].capture
    ends = list(accumulate(len(part[layers[0]]) for part in parts))
    items = [(drafter_state.state, slice(*ends)) for drafter_state, ends in zip(behind, pairwise([0, *ends]), strict=True)]
    behind[0].draft_model.read_many(items, {layer: np.concatenate([part[layer] for part in parts]) for layer in layers})


def read_noted(drafter_states: Sequence[_DFlashState]) -> None:
    """Let the draft model read the noted rows of several sessions, those of one forward together."""
    of_forward: dict[int, tuple[Features, list[tuple[DraftState, Rows]]]] = {}
    for each in drafter_states:
        if each.noted is not None and not each.state.closed:
            features, rows = each.noted
            of_forward.setdefault(id(features), (features, []))[1].append((each.state, rows))
        each.noted = None
    for features, items in of_forward.values():
        drafter_states[0].draft_model.read_many(items, features)
