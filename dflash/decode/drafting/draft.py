"""Guessed tokens, as a tree."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Guessed tokens as a tree under the last token of a text. A chain is a tree that never forks.

    Parameters
    ----------
    tokens : int32 (N,)
        The guesses.
    parents : int32 (N,), optional
        Index of the guess above each one, which comes before it; -1 under the last token of the text. A chain if None.
    scores : float32 (N,), optional
        What its maker thinks of each guess of a chain: the log-probability that it is right if those before it are.

    Raises
    ------
    ValueError
        If they differ in length or a parent does not come before its child.
    """

    tokens: Ints
    parents: Ints
    scores: Floats | None
    _children: dict[tuple[int, int], int] | None = field(default=None, init=False, repr=False)

    def __init__(self, tokens: ArrayLike, parents: ArrayLike | None = None, *, scores: Floats | None = None) -> None:
        guesses = np.asarray(tokens, np.int32)
        n = len(guesses)
        above = np.arange(-1, n - 1, dtype=np.int32) if parents is None else np.asarray(parents, np.int32)
        if guesses.shape != (n,) or above.shape != (n,):
            raise ValueError(f"draft: wanted a parent for each token, got tokens {guesses.shape} and parents {above.shape}")
        if parents is not None and n and ((above < -1).any() or (above >= np.arange(n)).any()):
            raise ValueError(f"draft: every parent must come before its child or be -1, got {above.tolist()}")
        object.__setattr__(self, "tokens", guesses)
        if scores is not None and len(scores) != n:
            raise ValueError(f"draft: wanted a score for each of {n} tokens, got {len(scores)}")
        object.__setattr__(self, "parents", above)
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "_children", None)

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Draft):
            return NotImplemented
        return np.array_equal(self.tokens, other.tokens) and np.array_equal(self.parents, other.parents)

    __hash__ = None

    @property
    def depths(self) -> Ints:
        """How many guesses there are on the path to each one (N,), itself included."""
        n = len(self)
        chain = np.arange(1, n + 1, dtype=np.int32)
        if (self.parents == chain - 2).all():
            return chain
        found = np.zeros(n + 1, np.int32)  # the last one is that of -1
        for i, parent in enumerate(self.parents.tolist()):
            found[i] = found[parent] + 1
        return found[:n]

    def positions(self, n: int) -> Sequence[int]:
        """Positions of the tokens after each row (1 + N,), the first row being the last of a text of `n` tokens."""
        return np.append(n, n + self.depths) if len(self) else (n,)

    @property
    def depth(self) -> int:
        """Most guesses on a path from the root to a leaf; 0 of the empty draft."""
        return int(self.depths.max(initial=0))

    def children(self, node: int = -1) -> list[int]:
        """Guesses right under one; -1 asks for those under the last token of the text."""
        return np.flatnonzero(self.parents == node).tolist()

    def child(self, node: int, token: int) -> int:
        """The guess under `node` that is `token`, the first of several; -1 if there is none."""
        if self._children is None:
            found: dict[tuple[int, int], int] = {}
            for i, key in enumerate(zip(self.parents.tolist(), self.tokens.tolist(), strict=True)):
                found.setdefault(key, i)
            object.__setattr__(self, "_children", found)
        return self._children.get((node, token), -1)

    def path(self, node: int) -> list[int]:
        """Guesses from the root down to `node`, both included."""
        found: list[int] = []
        while node >= 0:
            found.append(node)
            node = int(self.parents[node])
        return found[::-1]

    def cut(self, n: int) -> "Draft":
        """The first `n` guesses: a tree, too, since parents come before children."""
        if n >= len(self):
            return self
        if self.scores is not None:  # a chain
            return Draft(self.tokens[:n], scores=self.scores[:n])
        return Draft(self.tokens[:n], self.parents[:n])


EMPTY = Draft(())
"""No guess: plain decoding."""
