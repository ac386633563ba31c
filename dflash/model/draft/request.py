"""Requests to a draft model."""

from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from dflash.errors import KernelError, RequestError
from dflash.kernels.sample import SampleParams
from dflash.model.draft.state import DraftState
from dflash.model.state.sequence_state import State

S = TypeVar("S", bound=DraftState | State)


class DraftRequest(NamedTuple, Generic[S]):
    """Request for a draft of one sequence: for candidates on the host, or for a tree that stays on a device.

    state: state of the draft model or head that has read all tokens of the sequence but the last.
    anchor: the last token, at position ``state.length``; -1 if the device finds it.
    n_draft: positions to draft after the anchor, 1 to ``config.max_draft``.
    params: sampling parameters of the sequence; the scores include its temperature and noise.
    n_candidates: candidates of each position, 1 to 64. A DFlash 2 draft always returns all that its selector scores.
    draft_vocab: index of one of the draft model's ``draft_vocabs``; None drafts from its full vocabulary.
    nodes: draft tokens in the tree; None for a chain.
    """

    state: S
    anchor: int
    n_draft: int
    params: SampleParams
    n_candidates: int = 1
    draft_vocab: int | None = None
    nodes: int | None = None

    @property
    def n_nodes(self) -> int:
        """Draft tokens of a tree or chain on a device."""
        return self.n_draft if self.nodes is None else self.nodes

    @property
    def is_chain(self) -> bool:
        """True if each draft token on a device follows the one before it."""
        return self.n_nodes <= self.n_draft


def shared_draft_vocab(requests: Sequence[DraftRequest[S]]) -> int | None:
    """Return the smallest draft vocabulary that includes those of all requests; None is the full one."""
    wanted = [request.draft_vocab for request in requests if request.draft_vocab is not None]
    return None if len(wanted) < len(requests) else max(wanted, default=None)


def draft_rows(requests: Sequence[DraftRequest[DraftState]]) -> Iterator[tuple[DraftRequest[DraftState], slice]]:
    """Yield each request with its draft rows, which stand one after the other."""
    start = 0
    for request in requests:
        yield request, slice(start, start + request.n_draft)
        start += request.n_draft


def check_requests(requests: Sequence[DraftRequest[DraftState]], n_vocab: int, max_draft: int) -> None:
    """Check requests to a block draft of at most `max_draft` positions; raises the errors of `BlockDraft.propose`."""
    states = [request.state for request in requests]
    if len({state.slot for state in states}) < len(states) or any(state.closed for state in states):
        raise KernelError("propose: two requests have the same state, or a state is closed")
    for request in requests:
        if not 0 <= request.anchor < n_vocab:
            raise RequestError(f"token {request.anchor} is not in the vocabulary: ids are 0 to {n_vocab - 1}")
        if not 1 <= request.n_draft <= max_draft:
            raise RequestError(f"n_draft is {request.n_draft}, must be 1 to {max_draft} for this draft")
