"""What a draft on a GPU has guessed, or is guessing."""

from collections.abc import Sequence
from typing import Any, Protocol
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from dflash.errors import DFlashError
from dflash.kernels.gpu.buffers import DeviceArrays
from dflash.kernels.ragged import PENDING
from dflash.kernels.tree.cuda import WriteDraft
from dflash.model.draft.request import DeviceDraftRequest

Ints = NDArray[np.int32]


class DeviceDrafter(Protocol):
    """A draft on a GPU, that guesses for several texts at once.

    Attributes
    ----------
    latest : DeviceDrafts or None
        Those that lie on the device.
    """

    latest: "DeviceDrafts | None"

    def follow(self, requests: Sequence[DeviceDraftRequest], order: Sequence[int]) -> bool:
        """Guess for texts of the last forward, under the tokens that are being drawn from it.

        Parameters
        ----------
        device_requests : sequence of DeviceDraftRequest
        order : sequence of int
            Which of the forward's spans each is of.

        Returns
        -------
        bool
            False, and nothing is done, if that was not one decode pass, or some of these texts are not read so far.
        """
        ...

    def writer(self, batch: Any) -> WriteDraft:
        """What lays guesses into the target's batch."""
        ...


def may_follow(target: Any, requests: Sequence[DeviceDraftRequest], order: Sequence[int]) -> bool:
    """Whether the last forward of `target` was one decode pass, up to which the texts of some wishes were read."""
    last = target.latest
    if last is None or not target.alone:
        return False
    return all(last.spans[i].state.length == request.state.length for i, request in zip(order, requests, strict=True))


def most_rows(target: Any, order: Sequence[int]) -> int:
    """Most rows of some spans of the last forward of `target` that may be text."""
    sizes = {i: len(target.latest.spans[i].tokens) for i in order}
    return min(sum(min(n, 1 + target.planted[i].positions) if i in target.planted else n for i, n in sizes.items()), PENDING)


class DeviceDrafts:
    """A tree of guesses for each of some texts, on the device until somebody looks.

    Parameters
    ----------
    draft : DeviceDrafter
        That makes them; the next ones that it makes take their place on the device.
    device_requests : sequence of DeviceDraftRequest
        What was asked for.
    out : DeviceArrays
        Where they are made; see `dflash.kernels.tree.cuda.guesses`.
    anchors : sequence of int, optional
        The tokens under which they stand; None if a kernel finds them.
    """

    def __init__(
        self, draft: DeviceDrafter, requests: Sequence[DeviceDraftRequest], out: DeviceArrays, anchors: Sequence[int] | None
    ) -> None:
        # the draft remembers its latest guesses, and has weights on the device
        self._draft, self.requests = ref(draft), tuple(requests)
        self._under = None if anchors is None else tuple(anchors)
        self._lengths = [request.state.length for request in requests]
        self._waiting = set[Any]() if anchors is not None else {request.state for request in requests}
        self._features: Any = None
        self._download = out.download()
        self._found: list[tuple[Ints, Ints]] | None = None

    def __len__(self) -> int:
        return len(self.requests)

    def awaits(self, state: Any, features: Any) -> bool:
        """Whether rows of these features, of that text, were read on the way here."""
        return state in self._waiting and features is self._features

    def record_accepted(self, state: Any, n_rows: int) -> None:
        """So many rows of a text that were read are text now."""
        self._waiting.discard(state)
        state.length += n_rows
        self._lengths[[request.state for request in self.requests].index(state)] = state.length

    def matches(self, requests: Sequence[DeviceDraftRequest], anchors: Sequence[int]) -> bool:
        """Whether they are what is wanted under these tokens; if so, that is what they are held to."""
        same = not self._waiting and self.requests == tuple(requests)
        if not same or any(request.state.length != n for request, n in zip(requests, self._lengths, strict=True)):
            return False
        self._under = tuple(anchors)
        return True

    def tree(self, i: int) -> tuple[Ints, Ints]:
        """Tokens and parents (N,) of the i-th text's guesses, once they are there; -1 is under its last token.

        Raises
        ------
        DFlashError
            If they stand elsewhere than the text ends, which would be an error of this package.
        """
        if self._found is None:
            host, n = self._download.wait(), len(self)
            if self._features is not None and self._under is not None:
                stand = list(zip(host.anchors[:n].tolist(), host.lengths[:n].tolist(), strict=True))
                if stand != (wanted := list(zip(self._under, self._lengths, strict=True))):
                    raise DFlashError(f"draft: guessed under {stand}, the texts end with {wanted}")
            sizes = [request.nodes for request in self.requests]
            self._found = [(host.tokens[s, :size].copy(), host.parents[s, :size].copy()) for s, size in enumerate(sizes)]
        return self._found[i]

    @property
    def latest(self) -> bool:
        """Whether the device still holds them."""
        draft = self._draft()
        return draft is not None and draft.latest is self

    def writer(self, batch: Any) -> WriteDraft:
        """What lays them into the batch of a pass."""
        draft = self._draft()
        assert draft is not None, "a draft lives as long as its target"
        return draft.writer(batch)

    def follows(self, features: Any) -> "DeviceDrafts":
        """These, that read rows of such features on their way."""
        self._features = features
        return self
