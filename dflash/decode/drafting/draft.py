"""Draft tokens of one step, as a tree."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dflash.model.protocols.device_drafter import DeviceDrafts

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Positions = Sequence[int] | NDArray[np.integer]


class DraftProbs(NamedTuple):
    """Distributions from which the tokens of a chain were sampled, each given the tokens before it.

    ids: int32 (N, K); tokens with a probability above 0; -1 fills rows with fewer than K.
    values: float64 (N, K); their probabilities, 0 where `ids` is -1.
    """

    ids: Ints
    values: NDArray[np.float64]

    def row(self, index: int, n_vocab: int) -> NDArray[np.float64]:
        """Return the distribution of one draft token over the whole vocabulary (V,)."""
        dense, found = np.zeros(n_vocab), self.ids[index] >= 0
        dense[self.ids[index, found]] = self.values[index, found]
        return dense

    def cut(self, n: int) -> "DraftProbs":
        """Return the distributions of the first `n` draft tokens."""
        return DraftProbs(self.ids[:n], self.values[:n])


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Draft tokens as a tree under the last token of a sequence. A chain is a tree without forks.

    Parameters
    ----------
    tokens : int32 (N,)
        The draft tokens.
    parents : int32 (N,), optional
        Index of each token's parent, below its own; -1 under the last token of the sequence. A chain if None.
    scores : float32 (N,), optional
        For chains, the drafter's log-probability that each token is accepted if those before it are.
    probs : DraftProbs, optional
        For chains, the distributions that the tokens were sampled from, for verifiers that compare them with the target's.
        Whether a token is in the draft must not depend on what was sampled for it. Without them the draft may be made by
        any rule.

    Raises
    ------
    ValueError
        If the arrays differ in length or a parent does not come before its child.
    """

    tokens: Ints
    parents: Ints
    scores: Floats | None
    probs: DraftProbs | None
    _children: dict[tuple[int, int], int] | None = field(default=None, init=False, repr=False)

    def __init__(
        self,
        tokens: ArrayLike,
        parents: ArrayLike | None = None,
        *,
        scores: Floats | None = None,
        probs: DraftProbs | None = None,
    ) -> None:
        ids = np.asarray(tokens, np.int32)
        n = len(ids)
        above = np.arange(-1, n - 1, dtype=np.int32) if parents is None else np.asarray(parents, np.int32)
        if ids.shape != (n,) or above.shape != (n,):
            raise ValueError(f"draft: wanted a parent for each token, got tokens {ids.shape} and parents {above.shape}")
        if parents is not None and n and ((above < -1).any() or (above >= np.arange(n)).any()):
            raise ValueError(f"draft: every parent must come before its child or be -1, got {above.tolist()}")
        object.__setattr__(self, "tokens", ids)
        if scores is not None and len(scores) != n:
            raise ValueError(f"draft: wanted a score for each of {n} tokens, got {len(scores)}")
        object.__setattr__(self, "parents", above)
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "probs", probs)
        object.__setattr__(self, "_children", None)

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Draft):
            return NotImplemented
        return np.array_equal(self.tokens, other.tokens) and np.array_equal(self.parents, other.parents)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # as typeshed declares what can't be hashed

    @property
    def is_chain(self) -> bool:
        """True if the drafter has given the draft as a chain with scores or distributions."""
        return self.scores is not None or self.probs is not None

    @property
    def drafts(self) -> DeviceDrafts | None:
        """Drafts of a device that this one is part of; None if its tokens are on the host."""
        return None

    @property
    def index(self) -> int:
        """Index of this draft among `drafts`."""
        return 0

    @property
    def without_forks(self) -> bool:
        """True if the parent of each token is the one before it."""
        return bool((self.parents == np.arange(-1, len(self) - 1)).all())

    @property
    def depths(self) -> Ints:
        """Number of draft tokens on the path from the root to each one (N,), itself included."""
        n = len(self)
        if self.without_forks:
            return np.arange(1, n + 1, dtype=np.int32)
        found = np.zeros(n + 1, np.int32)  # the last entry belongs to parent -1
        for i, parent in enumerate(self.parents.tolist()):
            found[i] = found[parent] + 1
        return found[:n]

    def positions(self, n: int) -> Positions:
        """Return the position that follows each row (1 + N,). Row 0 is the last token of a sequence of length `n`."""
        return np.append(n, n + self.depths) if len(self) else (n,)

    @property
    def depth(self) -> int:
        """Most draft tokens on a path from the root to a leaf; 0 for the empty draft."""
        return int(self.depths.max(initial=0))

    def children(self, node: int = -1) -> list[int]:
        """Return the children of a node; -1 is the last token of the sequence."""
        return np.flatnonzero(self.parents == node).tolist()

    def child(self, node: int, token: int) -> int:
        """Return the first child of `node` that holds `token`; -1 if there is none."""
        found = self._children
        if found is None:
            found = {}
            for i, key in enumerate(zip(self.parents.tolist(), self.tokens.tolist(), strict=True)):
                found.setdefault(key, i)
            object.__setattr__(self, "_children", found)
        return found.get((node, token), -1)

    def path(self, node: int) -> list[int]:
        """Return the nodes from the root's child down to `node`."""
        found: list[int] = []
        while node >= 0:
            found.append(node)
            node = int(self.parents[node])
        return found[::-1]

    def cut(self, n: int) -> "Draft":
        """Return the first `n` draft tokens. They form a tree, since parents come before children."""
        if n >= len(self):
            return self
        if self.is_chain:
            scores, probs = self.scores, self.probs
            cut_scores, cut_probs = None if scores is None else scores[:n], None if probs is None else probs.cut(n)
            return Draft(self.tokens[:n], scores=cut_scores, probs=cut_probs)
        return Draft(self.tokens[:n], self.parents[:n])


EMPTY = Draft(())
"""The draft of plain decoding."""
