"""Draft models whose drafts stay on the device: their protocol, and the drafts of a pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from dflash.errors import DFlashError

if TYPE_CHECKING:
    from dflash.kernels.gpu.batch import DeviceBatch
    from dflash.kernels.gpu.buffers import DeviceArrays
    from dflash.model.draft.request import DraftRequest
    from dflash.model.draft.state import DraftState
    from dflash.model.state.sequence_state import State

Ints = NDArray[np.int32]


class DeviceDrafter(Protocol):
    """Draft model on a GPU that drafts for several sequences in one pass, also before their last tokens are known.

    `DraftPlan` names one; the state of its request is a state of this drafter. Implemented by
    `dflash.model.cuda.draft.DeviceBlockDraft` and `dflash.model.cuda.heads.DeviceMtpHead`.
    """

    @property
    def latest(self) -> DeviceDrafts | None:
        """The trees that the device memory holds now. Read by `DeviceDrafts.latest`, at any time; None after a reset."""

    def __hash__(self) -> int:
        """Return a hash by identity; the engine groups the plans of a step by drafter."""

    def launch_ahead(
        self, device_requests: Sequence[DraftRequest[Any]], order: Sequence[int], taken: Sequence[int] = ()
    ) -> bool:
        """Launch drafts for sequences of the last forward, below the tokens that are being sampled from that forward.

        Called by the engine once a step, after sampling was launched and before a token is known on the host. The drafts
        are found by the drafter's next proposal if they still answer it.

        Parameters
        ----------
        device_requests : sequence of DraftRequest
            At most one for each sequence.
        order : sequence of int
            Index of the forward's span for each request.
        taken : sequence of int
            For each request how many tokens of the span's draft, a chain, are accepted whatever is sampled; -1 if sampled
            tokens decide, for all requests by default.

        Returns
        -------
        bool
            False if nothing was launched: the last forward was not one decode pass, or the drafter has not read some of
            these sequences up to it.
        """

    def writer(self, batch: DeviceBatch) -> Callable[[Sequence[int]], None]:
        """Return the launch that writes the latest trees into the target's batch. Called by `DeviceDrafts.writer`."""


class DeviceDrafts:
    """Draft trees of one pass, one per request; they stay on the device until `tree` reads them.

    draft: draft model that computes them. Its next drafts overwrite these on the device.
    out: output arrays of the pass, made by the function of `dflash.kernels.tree.cuda` that allocates them.
    anchors: root token of each tree; None if a kernel finds them.
    """

    def __init__(
        self,
        draft: DeviceDrafter,
        requests: Sequence[DraftRequest[Any]],
        out: DeviceArrays,
        anchors: Sequence[int] | None,
    ) -> None:
        # a weak reference: the draft model holds its latest drafts, and a cycle would keep its weights on the device
        self._draft, self.requests = ref(draft), tuple(requests)
        self._under = None if anchors is None else tuple(anchors)
        self._lengths = [request.state.length for request in requests]
        self._waiting: set[DraftState | State] = set()
        if anchors is None:
            self._waiting.update(request.state for request in requests)
        self._features: object = None
        self._download = out.download()
        self._found: list[tuple[Ints, Ints]] | None = None

    def __len__(self) -> int:
        return len(self.requests)

    def awaits(self, state: DraftState | State, features: object) -> bool:
        """Return True if this pass read rows of `features` for that sequence and none are recorded as accepted yet."""
        return state in self._waiting and features is self._features

    def record_accepted(self, state: DraftState | State, n_rows: int) -> None:
        """Record that `n_rows` rows of a sequence, which this pass has read, were accepted."""
        self._waiting.discard(state)
        state.length += n_rows
        self._lengths[[request.state for request in self.requests].index(state)] = state.length

    def matches(self, requests: Sequence[DraftRequest[Any]], anchors: Sequence[int]) -> bool:
        """Return True if these drafts answer the requests; `tree` then checks their roots against `anchors`."""
        same = not self._waiting and self.requests == tuple(requests)
        if not same or any(request.state.length != n for request, n in zip(requests, self._lengths, strict=True)):
            return False
        self._under = tuple(anchors)
        return True

    def tree(self, i: int) -> tuple[Ints, Ints]:
        """Wait for the pass and return tokens and parents (N,) of the i-th tree; parent -1 is the last token of the text."""
        if self._found is None:
            host, n = self._download.wait(), len(self)
            if self._features is not None and self._under is not None:
                stand = list(zip(host.anchors[:n].tolist(), host.lengths[:n].tolist(), strict=True))
                if stand != (wanted := list(zip(self._under, self._lengths, strict=True))):
                    raise DFlashError(f"draft: tree roots (token, position) are {stand}, must be {wanted}")
            sizes = [request.n_nodes for request in self.requests]
            self._found = [(host.tokens[s, :size].copy(), host.parents[s, :size].copy()) for s, size in enumerate(sizes)]
        return self._found[i]

    @property
    def latest(self) -> bool:
        """True while the device memory still holds these drafts."""
        draft = self._draft()
        return draft is not None and draft.latest is self

    def writer(self, batch: DeviceBatch) -> Callable[[Sequence[int]], None]:
        """Return the launch that writes these drafts into the batch of a pass."""
        draft = self._draft()
        assert draft is not None, "a draft lives as long as its target"
        return draft.writer(batch)

    def reading(self, features: object) -> DeviceDrafts:
        """Note that the pass also read rows of `features`, and return these drafts."""
        self._features = features
        return self
