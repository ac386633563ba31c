"""Protocols of draft models whose drafts stay on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dflash.kernels.gpu.batch import DeviceBatch
    from dflash.model.draft.request import DeviceDraftRequest

Ints = NDArray[np.int32]


class DraftTrees(Protocol):
    """Draft trees of one pass for several sequences, in the device's memory. Equal only to itself, and hashable."""

    @property
    def requests(self) -> Sequence[DeviceDraftRequest[Any]]:
        """The request that each tree answers. Read by the model, which bounds the rows that may be accepted."""

    @property
    def latest(self) -> bool:
        """True while the device memory still holds these trees. Read by the model when it lays out a forward.

        If False, the model fetches the tokens with `tree`.
        """

    def __len__(self) -> int:
        """Return the number of trees."""

    def __hash__(self) -> int:
        """Return a hash by identity; a forward groups its spans by pass."""

    def tree(self, i: int) -> tuple[Ints, Ints]:
        """Wait for the pass and return tokens and parents (N,) of a tree; parent -1 is the last token of the sequence.

        Called when `verify` or a processor needs tokens on the host, at any time after the pass was launched.
        """

    def writer(self, batch: DeviceBatch) -> Callable[[Sequence[int]], None]:
        """Return the launch that writes these trees into a batch, as `WriteDraft` does.

        Called by the model while `latest` is True.
        """


class DeviceDrafter(Protocol):
    """Draft model on a GPU that drafts for several sequences in one pass, also before their last tokens are known.

    `LaunchDraft` names one; the state of its request is a state of this drafter. Implemented by
    `dflash.model.cuda.draft.DeviceBlockDraft` and `dflash.model.cuda.heads.DeviceMtpHead`.
    """

    @property
    def latest(self) -> DraftTrees | None:
        """The trees that the device memory holds now. Read by `DraftTrees.latest`, at any time; None after a reset."""

    def __hash__(self) -> int:
        """Return a hash by identity; the engine groups the plans of a step by drafter."""

    def launch_ahead(
        self, device_requests: Sequence[DeviceDraftRequest[Any]], order: Sequence[int], taken: Sequence[int] = ()
    ) -> bool:
        """Launch drafts for sequences of the last forward, below the tokens that are being sampled from that forward.

        Called by the engine once a step, after sampling was launched and before a token is known on the host. The drafts
        are found by the drafter's next proposal if they still answer it.

        Parameters
        ----------
        device_requests : sequence of DeviceDraftRequest
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
        """Return the launch that writes the latest trees into the target's batch. Called by `DraftTrees.writer`."""
