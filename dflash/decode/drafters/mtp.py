"""Draft with a head that continues from its own hidden states, such as the multi-token prediction (MTP) head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dflash.decode.drafters.model_state import ModelDrafter, ModelDrafterState
from dflash.decode.drafting.diagnostics import DraftDiagnostics
from dflash.decode.drafting.draft import Draft
from dflash.decode.drafting.drafter import DraftPlan, Rows
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.drafting.shapes.tree import BUDGET
from dflash.decode.registry import register
from dflash.decode.settings import spelled
from dflash.kernels.ragged import PENDING
from dflash.model.draft import DraftRequest
from dflash.model.loading.mtp import load_mtp
from dflash.model.loading.target import loaded_model
from dflash.model.recurrent_head import HeadRequest, Unread
from dflash.model.state.host_arrays import checked, placed_like, to_host
from dflash.model.state.sequence_state import Snapshot

if TYPE_CHECKING:
    from dflash.decode.step import Step
    from dflash.decode.view import SessionView
    from dflash.model.batch import Forward
    from dflash.model.candidates import Candidates
    from dflash.model.cuda.heads import DeviceEagleHead, DeviceMtpHead
    from dflash.model.eagle.head import EagleHead
    from dflash.model.mtp import MtpHead
    from dflash.model.protocols.device_drafter import DeviceDrafts
    from dflash.model.protocols.target import TargetModel
    from dflash.model.state.host_arrays import HostArrays
    from dflash.model.state.sequence_state import State

    Head = MtpHead | DeviceMtpHead | EagleHead | DeviceEagleHead

DEPTH = 3
"""Default number of draft tokens: each costs a pass of the head and is accepted less often than the one before it."""


DRAFT_OPTIONS = {"draft": "file", "draft_vocab": "draft_vocab"}
"""Draft options that names of heads take, each with the parameter that it sets."""


class HeadDrafter(ModelDrafter["_HeadState"]):
    """Drafts with a head that continues from its own hidden states, one pass for each draft token."""

    def warm(self, attachment: Head) -> Iterable[None]:
        """Capture the graphs of a head on a GPU."""
        return attachment.warm(DEPTH) if attachment.device == "cuda" else ()

    def snapshot_from_host(self, model: TargetModel, arrays: HostArrays) -> _HeadSnapshot:
        """See `Drafter`."""
        head, n = model.attachments[self], len(arrays.get("unread", ()))
        unread = checked(arrays, "unread", (n, head.n_features), np.float32)
        return _HeadSnapshot(Snapshot.from_host(head.pools, arrays), placed_like(unread, head.pools.k))

    def can_start_at(self, model: TargetModel, n_prompt: int, length: int, snapshot: _HeadSnapshot | None = None) -> bool:  # noqa: ARG002
        """Return True if the head has read all of these tokens, but for the features in the snapshot."""
        return snapshot is not None and snapshot.cache.length + len(snapshot.unread) == length

    def end_step(self, drafter_states: Sequence[_HeadState]) -> None:
        """Let the head read prompts of all sessions, and features that many steps without drafts have left, in one pass."""
        take_noted(drafter_states)

    def plan_next(self, drafter_states: Sequence[_HeadState], drafts: Sequence[Draft]) -> list[DraftPlan | None]:
        """Let a head on a GPU read all accepted tokens first, as its next drafts begin with the result of this step."""
        behind = [each for each in drafter_states if each.on_device and len(each.unread) and not each.is_read]
        if behind:
            behind[0].draft_model.read_all([each.first_unread(len(each.unread)) for each in behind])
        for each in behind:
            each.all_read()
        return super().plan_next(drafter_states, drafts)

    def start(self, session: SessionView, model: TargetModel, snapshot: _HeadSnapshot | None = None) -> _HeadState:
        """Take a sequence of the head for the session."""
        return _HeadState(*self.attached(session, model), snapshot)


_TREE = "Draft a tree of tokens with the MTP head of the model's file: several candidates for each position."


@register("mtp-tree", number="NODES", shape=Tree, default=BUDGET, takes=DRAFT_OPTIONS, spare_draft=True, about=_TREE)
@register("mtp", number="DEPTH", shape=Chain, takes=DRAFT_OPTIONS, spare_draft=True)
@dataclass(frozen=True, repr=False)
class MTP(HeadDrafter):
    """Draft with the MTP head of the model's file, one pass for each draft token.

    In a tree, the head continues from the likeliest token of each position.

    Parameters
    ----------
    file : str, optional
        A file that holds the head, if the model's own does not; or a folder of safetensors, as speculators writes it.
    draft_vocab : int, optional
        Size of the draft vocabulary, as for `DFlash`, also if None.
    """

    file: str | None = None
    draft_vocab: int | None = None
    __repr__ = spelled

    def load(self, model: TargetModel) -> MtpHead | DeviceMtpHead:
        """Load the head."""
        return load_mtp(loaded_model(model), self.file, draft_vocab=self.draft_vocab)


_MOST_UNREAD = 16
"""Most features of a session that wait to be read: steps without drafts share a pass of the head."""


class _Noted(NamedTuple):
    """Rows of the target's features in a forward; those of a prompt are a slice."""

    features: Any
    rows: Rows

    @property
    def of_prompt(self) -> bool:
        return isinstance(self.rows, slice)


class _HeadSnapshot:
    """Cache of the head and the target's features that it has not read."""

    def __init__(self, cache: Snapshot, unread: Any) -> None:
        self.cache, self.unread = cache, unread

    @property
    def n_bytes(self) -> int:
        return self.cache.n_bytes + self.unread.nbytes

    def host_arrays(self) -> HostArrays:
        return self.cache.host_arrays() | {"unread": to_host(self.unread)}

    def close(self) -> None:
        self.cache.close()


class _HeadState(ModelDrafterState):
    """State of the head for one session.

    The head reads the target's features at position j together with token j + 1, so the last features wait until that
    token is known.

    Attributes
    ----------
    unread : float32 (n, F), or FeatureRows
        Features that the head has not read. If the GPU has read the last one ahead, it stays here until a draft is
        made from it. If none is made, the head reads it again.
    noted : list
        Rows of the last forward that `end_step` adds to `unread`.
    is_read : bool
        True if the GPU has read the only row of `unread` ahead.
    """

    draft_model: Head
    state: State

    def __init__(
        self,
        head: Head,
        session: SessionView,
        diagnostics: DraftDiagnostics,
        snapshot: _HeadSnapshot | None,
    ) -> None:
        super().__init__(head, session, diagnostics, head.draft_vocabs, head.config.n_vocab)
        self.capture = head.target_layer_ids
        self.unread: Any = head.join([])
        self.is_read = False
        self.noted: list[_Noted] = []
        with self.owned(head.state()):
            if snapshot is not None:
                self.state.restore(snapshot.cache)
                self.unread = head.from_array(snapshot.unread)
        # the first tokens of a prefix may lack in the head
        self._n_absent = session.n_prefilled - len(self.unread) - self.state.length

    def reserve(self, length: int) -> None:
        """See `DrafterState`. On a GPU, a draft of full size is made even if less of it is used."""
        if self.on_device:
            length = max(length, len(self.session.token_ids) - 1 + PENDING)
        self.state.reserve(length - self._n_absent - self.state.length)

    def request(self, max_draft: int) -> HeadRequest | None:
        """Return the request for a draft; None if there is room for no token, or no features were observed yet."""
        n, width = self.wants(self.shape.depth or DEPTH, max_draft)
        if n < 1 or not len(self.unread):
            return None
        position, params, (tokens, features) = len(self.session.token_ids), self.params, self.new()
        return HeadRequest(
            self.state, tokens, features, n, params, position, width, self._vocab_tracker.select(self.session.token_ids)
        )

    def can_defer(self) -> bool:
        """See `ModelDrafterState`. The head needs the features of a position."""
        return len(self.unread) > 0 and super().can_defer()

    def device_request(self) -> tuple[DraftRequest[State], int]:
        """See `ModelDrafterState`."""
        return self.request_on_device(self.shape.depth or DEPTH)

    @staticmethod
    def candidates(drafter_states: Sequence[_HeadState], requests: Sequence[HeadRequest]) -> list[Candidates]:
        """Run one pass over the new tokens of all sessions, then one for each further draft token."""
        return drafter_states[0].draft_model.propose(requests)

    @staticmethod
    def device_drafts(
        drafter_states: Sequence[_HeadState], requests: Sequence[DraftRequest[State]], anchors: Sequence[int]
    ) -> DeviceDrafts | None:
        """See `ModelDrafterState`. Takes the drafts that were launched ahead, if there are any."""
        head = drafter_states[0].draft_model
        assert head.device == "cuda", "drafts on the CPU are never deferred"
        drafts = head.ready(requests, anchors) if all(each.is_read for each in drafter_states) else None
        drafts = drafts or head.draft_on_device(requests, anchors, [each.new() for each in drafter_states])
        if drafts is not None:
            for each in drafter_states:
                each.all_read()
        return drafts

    def new(self) -> tuple[np.ndarray, Any]:
        """Return the tokens to read and the features before them."""
        if self.is_read:
            self.state.cut(self.state.length - 1)
            self.is_read = False
        return self._tokens(len(self.unread)), self.unread

    def all_read(self) -> None:
        """Drop the features that the head has read."""
        self.unread, self.is_read = self.unread[:0], False

    def draft_of(self, candidates: Candidates, max_draft: int) -> Draft:
        """Return the draft made from candidates, after the head has read everything."""
        self.all_read()
        return super().draft_of(candidates, max_draft)

    def observe(self, step: Step, out: Forward, rows: Rows) -> None:  # noqa: ARG002
        if self.is_read:
            self.all_read()
        n, features = self.count_rows(rows), self.draft_model.features_of(out)
        if self.draft_model.record_accepted(self.state, features, n):
            last = range(len(out.hidden))[rows][-1] if isinstance(rows, slice) else rows[-1]
            self.unread, self.is_read = self.draft_model.last_read(self.state, features, last), True
        else:
            self.noted.append(_Noted(features, rows))

    def snapshot(self) -> _HeadSnapshot:
        take_noted([self])
        self.new()
        return _HeadSnapshot(self.state.snapshot(), self.draft_model.to_array(self.unread))

    def first_unread(self, n: int) -> Unread[Any]:
        """Return the first `n` tokens that the head has not read, with the features before them."""
        return Unread(self.state, self._tokens(n), self.unread[:n])

    def _tokens(self, n: int) -> np.ndarray:
        """Return the first `n` tokens that the head has not read."""
        first = self.n_seen - len(self.unread) + 1
        return np.array(self.session.token_ids[first : first + n], np.int32)


def take_noted(drafter_states: Sequence[_HeadState]) -> None:
    """Take the rows that sessions noted of a forward: read those of prompts in common passes, but for the last of each.

    Rows of decoding sessions are copied, and read once there are many: few are read in the pass that drafts.
    """
    noted = [each for each in drafter_states if each.noted and not each.state.closed]
    if not noted:
        return
    head: Any = noted[0].draft_model
    prompts = {each for each in noted if each.noted[0].of_prompt}
    found: dict[_HeadState, list[Any]] = {each: [] for each in noted}
    groups: dict[tuple[int, bool], list[tuple[_HeadState, _Noted]]] = {}
    for each in noted:
        for one in each.noted:
            groups.setdefault((id(one.features), one.of_prompt), []).append((each, one))
        each.noted = []
    for (_, of_prompt), group in groups.items():
        parts = head.features_at(group[0][1].features, [one.rows for _, one in group], prompt=of_prompt)
        for (each, _), part in zip(group, parts, strict=True):
            found[each].append(part)
    new = {each: parts[0] if len(parts) == 1 else head.join(parts) for each, parts in found.items()}
    sizes = {each: len(each.unread) + len(features) for each, features in new.items()}
    # sessions that began at other steps join a pass
    limit = _MOST_UNREAD // 2 if max(sizes.values()) > _MOST_UNREAD else _MOST_UNREAD
    reading = [each for each in noted if sizes[each] > (1 if each in prompts else limit)]
    for each in reading:
        each.unread = head.join([each.unread, new[each]])
        new[each] = new[each][-1:]
    head.read_all([each.first_unread(sizes[each] - 1) for each in reading])
    kept = head.copies(list(new.values()))
    for each in reading:
        each.unread = each.unread[:0]
    for each, features in zip(new, kept, strict=True):
        each.unread = head.join([each.unread, features])
