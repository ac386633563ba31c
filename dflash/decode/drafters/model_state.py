"""Base classes of drafters that run a draft model, an MTP head or a small model, and of their states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

from dflash.decode.drafters.loading import LoadingDrafter
from dflash.decode.drafters.vocab_tracker import VocabTracker
from dflash.decode.drafting.device_draft import DeferredDraft, can_defer
from dflash.decode.drafting.diagnostics import DraftDiagnostics
from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import DrafterSnapshot, DraftPlan, Rows
from dflash.decode.drafting.sampled_chain import sampled_chain
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.kernels.ragged import PENDING
from dflash.kernels.sample import POOL, SampleParams
from dflash.model.candidates import Candidates, fill
from dflash.model.draft.request import DraftRequest

if TYPE_CHECKING:
    from dflash.decode.drafting.shapes import Shape
    from dflash.decode.step import Step
    from dflash.decode.view import SessionView
    from dflash.model.batch import Forward
    from dflash.model.draft.vocabulary import Vocabulary
    from dflash.model.protocols.device_drafter import DeviceDrafts
    from dflash.model.protocols.target import TargetModel


M = TypeVar("M", bound="ModelDrafterState")


class ModelDrafter(LoadingDrafter[M]):
    """A drafter whose states are of one class, derived from `ModelDrafterState`."""

    def attached(self, session: SessionView, model: TargetModel) -> tuple[Any, SessionView, DraftDiagnostics]:
        """Load the attachment unless it is loaded; return the first arguments of `ModelDrafterState`."""
        self.prepare(model)
        return model.attachments[self], session, DraftDiagnostics(session, model, repr(self))

    def propose(self, drafter_states: Sequence[M], max_drafts: Sequence[int]) -> list[Draft]:
        """Draft for all sessions together."""
        return drafter_states[0].propose_all(drafter_states, max_drafts)

    def plan_next(
        self,
        drafter_states: Sequence[M],
        drafts: Sequence[Draft],  # noqa: ARG002
    ) -> list[DraftPlan | None]:
        """Plan the next drafts, if they are made on a GPU."""
        return [drafter_state.plan_next() for drafter_state in drafter_states]


class ModelDrafterState:
    """State of a draft model for one session: pages or a slot of it, diagnostics, and the draft vocabulary.

    Subclasses define `request`, `candidates` and `observe`. Those with memory of a sequence set `state` in `owned`, those
    that draft on a GPU define `device_request` and `device_drafts`, and those that continue from a saved prefix `snapshot`.

    n_vocab: size of the whole vocabulary.
    state: memory of the draft model; released by `close`.
    on_device: True if drafts can be made on a GPU and stay there.
    n_seen: number of target rows that were observed or prefilled before.
    """

    capture: tuple[int, ...] = ()
    draft_model: Any  # subclasses annotate both with their own types
    state: Any = None

    def __init__(
        self,
        draft_model: Any,
        session: SessionView,
        diagnostics: DraftDiagnostics,
        draft_vocabs: Sequence[Vocabulary] = (),
        n_vocab: int = 0,
    ) -> None:
        self.draft_model, self.session, self.n_seen = draft_model, session, session.n_prefilled
        self.on_device = draft_model.device != "cpu"
        self.shape: Shape = session.strategy.shape or Chain()
        self._diagnostics = diagnostics
        self._vocab_tracker = VocabTracker(draft_vocabs, n_vocab, session.draft_vocab_steps)

    @contextmanager
    def owned(self, state: Any) -> Iterator[None]:
        """Own the memory of the draft model; release it if the body, which restores or reserves, fails."""
        self.state = state
        try:
            yield
        except BaseException:
            state.close()
            raise

    @property
    def params(self) -> SampleParams:
        """Sampling parameters of the next draft on the host."""
        return self.session.sampler.draft_params(len(self.session.token_ids))

    def wants(self, max_depth: int, max_draft: int) -> tuple[int, int]:
        """Return positions and candidates of the next draft on the host; see `Shape.wants`."""
        n, width = self.shape.wants(max_depth, max_draft)
        return n, POOL if self.session.sampler.draws else width

    def can_defer(self) -> bool:
        """Return True if the next draft may stay on the GPU until it is verified."""
        return self.on_device and can_defer(self.session)

    def request(self, max_draft: int) -> Any:
        """Return the request for a draft; None if no draft token fits or none can be made."""
        raise NotImplementedError

    def device_request(self) -> tuple[DraftRequest[Any], int]:
        """Return the request for a draft of full size on a GPU, and the number of its tokens to use."""
        raise NotImplementedError

    def request_on_device(self, max_depth: int) -> tuple[DraftRequest[Any], int]:
        """Return such a request for at most `max_depth` positions. The first tokens of a tree form a tree, too."""
        n, width = self.shape.wants(max_depth, PENDING - 1)
        nodes = min(self.shape.budget, PENDING - 1) if width > 1 and isinstance(self.shape, Tree) else None
        draft_vocab = self._vocab_tracker.select(self.session.token_ids)
        request = DraftRequest(self.state, -1, n, self.session.sampler.params, width, draft_vocab, nodes)
        return request, request.n_nodes

    @staticmethod
    def fill(drafter_states: Sequence[Any], found: Sequence[Candidates], at: int, logits: Any, targets: Any = None) -> None:
        """Find candidates of position `at` for several sessions, with the noise of their drafts.

        Parameters
        ----------
        found : sequence of Candidates
            Candidates of each session, as many as `wants` says. Their position `at` is written, the likeliest first.
        logits : float32 (B, V)
            Logits of the draft model, a row for each session.
        targets : int32 (V,), optional
            Target token of each logit, if the draft vocabulary is not the target's.
        """
        # fewer than `wants` says would misstate the distribution that a token was drawn from
        assert not any(s.session.sampler.draws and c.ids.shape[1] < POOL for s, c in zip(drafter_states, found, strict=True))
        first = [len(each.session.token_ids) for each in drafter_states]
        fill(found, at, logits, [each.params for each in drafter_states], first, targets=targets)

    @staticmethod
    def candidates(drafter_states: Sequence[Any], requests: Sequence[Any]) -> Sequence[Candidates]:
        """Return the candidates of several sessions, one for each request."""
        raise NotImplementedError

    @staticmethod
    def device_drafts(
        drafter_states: Sequence[Any], requests: Sequence[DraftRequest[Any]], anchors: Sequence[int]
    ) -> DeviceDrafts | None:
        """Return the drafts of a pass under the last tokens `anchors`, still on the GPU; None if it can't make them."""
        raise NotImplementedError

    def observe(self, step: Step, out: Forward, rows: Rows) -> None:
        """See `DrafterState`."""
        raise NotImplementedError

    def snapshot(self) -> DrafterSnapshot | None:
        """See `DrafterState`."""
        return None

    def propose(self, max_draft: int) -> Draft:
        """See `DrafterState`."""
        return self.propose_all([self], [max_draft])[0]

    @classmethod
    def propose_all(cls, drafter_states: Sequence[Self], max_drafts: Sequence[int]) -> list[Draft]:
        """Draft for several sessions of equal drafters together. The drafts stay on the GPU where they can."""
        deferred = cls._deferred(drafter_states, max_drafts)
        if deferred is not None:
            return deferred
        requests = [each.request(max_draft) for each, max_draft in zip(drafter_states, max_drafts, strict=True)]
        wanted = [request for request in requests if request is not None]
        going = [each for each, request in zip(drafter_states, requests, strict=True) if request is not None]
        found = cls.candidates(going, wanted) if wanted else ()
        assert len(found) == len(wanted), f"{cls.__name__}.candidates: wanted {len(wanted)}, got {len(found)}"
        rest = iter(found)
        return [
            EMPTY if request is None else each.draft_of(next(rest), max_draft)
            for each, request, max_draft in zip(drafter_states, requests, max_drafts, strict=True)
        ]

    @classmethod
    def _deferred(cls, drafter_states: Sequence[Self], max_drafts: Sequence[int]) -> list[Draft] | None:
        """Return drafts that stay on the GPU until verification; None if the host needs them or the GPU can't make them."""
        if min(max_drafts) < 1 or not all(each.can_defer() for each in drafter_states):
            return None
        found = [each.device_request() for each in drafter_states]
        anchors = [each.session.token_ids[-1] for each in drafter_states]
        drafts = cls.device_drafts(drafter_states, [request for request, _ in found], anchors)
        if drafts is None:
            return None
        made: list[Draft] = []
        for each, (request, n), max_draft in zip(drafter_states, found, max_drafts, strict=True):
            chain = request.is_chain
            made.append(DeferredDraft(drafts, len(made), min(n, max_draft), chain=chain))
            each.count_draft(len(made[-1]))
        return made

    def plan_next(self) -> DraftPlan | None:
        """Return the plan for the next draft on a GPU; None if drafts are made on the host."""
        return DraftPlan(self.draft_model, self.device_request()[0]) if self.on_device else None

    def draft_of(self, candidates: Candidates, max_draft: int) -> Draft:
        """Return the draft made from candidates."""
        if self.session.sampler.draws:
            draft = sampled_chain(candidates, max_draft, self.params, len(self.session.token_ids))
        else:
            draft = self.shape.draft(candidates, max_draft)
        self.count_draft(len(draft))
        return draft

    def count_draft(self, n: int) -> None:
        """Count a draft of `n` tokens in diagnostics and vocabulary statistics."""
        self._diagnostics.count_draft(n)
        self._vocab_tracker.count()

    def count_rows(self, rows: Rows) -> int:
        """Count the rows of a call of `observe` and return their number; all but the first are accepted draft tokens."""
        n = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        self.n_seen += n
        self._diagnostics.count_accepted(n - 1)
        return n

    def close(self) -> None:
        """See `DrafterState`."""
        if self.state is not None:
            self.state.close()
