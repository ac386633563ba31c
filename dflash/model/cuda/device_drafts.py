"""What a draft on a GPU has guessed, or is guessing."""

from collections.abc import Sequence
from typing import Any, Protocol
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from dflash.errors import DFlashError
from dflash.kernels.gpu.buffers import DeviceArrays
from dflash.kernels.ragged import PENDING
from dflash.kernels.tree.cuda import Plant
from dflash.model.draft.request import Wish

Ints = NDArray[np.int32]


class Guesser(Protocol):
    """A draft on a GPU, that guesses for several texts at once.

    Attributes
    ----------
    latest : Guesses or None
        Those that lie on the device.
    """

    latest: "Guesses | None"

    def follow(self, wishes: Sequence[Wish], order: Sequence[int]) -> bool:
        """Guess for texts of the last forward, under the tokens that are being drawn from it.

        Parameters
        ----------
        wishes : sequence of Wish
        order : sequence of int
            Which of the forward's spans each is of.

        Returns
        -------
        bool
            False, and nothing is done, if that was not one decode pass, or some of these texts are not read so far.
        """
        ...

    def planter(self, batch: Any) -> Plant:
        """What lays guesses into the target's batch."""
        ...


def may_follow(target: Any, wishes: Sequence[Wish], order: Sequence[int]) -> bool:
    """Whether the last forward of `target` was one decode pass, up to which the texts of some wishes were read."""
    last = target.latest
    if last is None or not target.alone:
        return False
    return all(last.spans[i].state.length == wish.state.length for i, wish in zip(order, wishes, strict=True))


def most_rows(target: Any, order: Sequence[int]) -> int:
    """Most rows of some spans of the last forward of `target` that may be text."""
    sizes = {i: len(target.latest.spans[i].tokens) for i in order}
    return min(sum(min(n, 1 + target.planted[i].positions) if i in target.planted else n for i, n in sizes.items()), PENDING)


class Guesses:
    """A tree of guesses for each of some texts, on the device until somebody looks.

    Parameters
    ----------
    draft : Guesser
        That makes them; the next ones that it makes take their place on the device.
    wishes : sequence of Wish
        What was asked for.
    out : DeviceArrays
        Where they are made; see `dflash.kernels.tree.cuda.guesses`.
    anchors : sequence of int, optional
        The tokens under which they stand; None if a kernel finds them.
    """

    def __init__(self, draft: Guesser, wishes: Sequence[Wish], out: DeviceArrays, anchors: Sequence[int] | None) -> None:
        # the draft remembers its latest guesses, and has weights on the device
        self._draft, self.wishes = ref(draft), tuple(wishes)
        self._under = None if anchors is None else tuple(anchors)
        self._lengths = [wish.state.length for wish in wishes]
        self._waiting = set[Any]() if anchors is not None else {wish.state for wish in wishes}
        self._features: Any = None
        self._download = out.download()
        self._found: list[tuple[Ints, Ints]] | None = None

    def __len__(self) -> int:
        return len(self.wishes)

    def expects(self, state: Any, features: Any) -> bool:
        """Whether rows of these features, of that text, were read on the way here."""
        return state in self._waiting and features is self._features

    def told(self, state: Any, n_rows: int) -> None:
        """So many rows of a text that were read are text now."""
        self._waiting.discard(state)
        state.length += n_rows
        self._lengths[[wish.state for wish in self.wishes].index(state)] = state.length

    def fit(self, wishes: Sequence[Wish], anchors: Sequence[int]) -> bool:
        """Whether they are what is wanted under these tokens; if so, that is what they are held to."""
        same = not self._waiting and self.wishes == tuple(wishes)
        if not same or any(wish.state.length != n for wish, n in zip(wishes, self._lengths, strict=True)):
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
            sizes = [wish.nodes for wish in self.wishes]
            self._found = [(host.tokens[s, :size].copy(), host.parents[s, :size].copy()) for s, size in enumerate(sizes)]
        return self._found[i]

    @property
    def latest(self) -> bool:
        """Whether the device still holds them."""
        draft = self._draft()
        return draft is not None and draft.latest is self

    def planter(self, batch: Any) -> Plant:
        """What lays them into the batch of a pass."""
        draft = self._draft()
        assert draft is not None, "a draft lives as long as its target"
        return draft.planter(batch)

    def follows(self, features: Any) -> "Guesses":
        """These, that read rows of such features on their way."""
        self._features = features
        return self
