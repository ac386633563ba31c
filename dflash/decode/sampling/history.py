"""The text that a rule sees when it is asked about the next token."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class History:
    """The path above one node of a draft: the text so far and the tokens picked on the way.

    Rules read it; only `verify` and the session write. Between two calls of a rule it may have grown, or been cut back and
    grown again: a rule that keeps a state of its own must look at what it has not seen itself.

    Parameters
    ----------
    prompt : sequence of int
        What was given.

    Attributes
    ----------
    token_ids : list of int
        Prompt and produced tokens, the last of them the one that the next token follows.
    n_prompt : int
        How many of them were given.
    counts : Counts or None
        How often each token occurs, where a rule asked for it.
    """

    __slots__ = ("counts", "n_prompt", "token_ids")

    def __init__(self, prompt: Sequence[int]) -> None:
        self.token_ids = list(prompt)
        self.n_prompt = len(self.token_ids)
        self.counts: Counts | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def n_produced(self) -> int:
        """Tokens after the prompt."""
        return len(self.token_ids) - self.n_prompt

    def count(self) -> None:
        """Keep `counts` from here on."""
        if self.counts is None:
            self.counts = Counts(self.token_ids[: self.n_prompt])
            for token in self.token_ids[self.n_prompt :]:
                self.counts.add(token)

    def push(self, token: int) -> None:
        """Go on by a token."""
        self.token_ids.append(token)
        if self.counts is not None:
            self.counts.add(token)

    def cut(self, length: int) -> None:
        """Go back to the first `length` tokens, at least the prompt."""
        if self.counts is not None:
            for token in reversed(self.token_ids[length:]):
                self.counts.remove(token)
        del self.token_ids[length:]


class Counts:
    """Every token that a text holds, once, and how often it was produced.

    Parameters
    ----------
    prompt : sequence of int
        Tokens that are there but were not produced.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        first = dict.fromkeys(prompt)
        self._slot = {token: i for i, token in enumerate(first)}
        self._n_prompt = self._n = len(first)
        self._ids = np.fromiter(first, np.int64, self._n)
        self._produced = np.zeros(self._n, np.float32)

    @property
    def ids(self) -> NDArray[np.int64]:
        """The tokens, in the order in which they came."""
        return self._ids[: self._n]

    @property
    def produced(self) -> NDArray[np.float32]:
        """How often each was produced."""
        return self._produced[: self._n]

    def of(self, token: int) -> float:
        """How often a token was produced; 0 too if it is not there."""
        slot = self._slot.get(token)
        return 0.0 if slot is None else float(self._produced[slot])

    def add(self, token: int) -> None:
        """A token was produced."""
        slot = self._slot.setdefault(token, self._n)
        if slot == self._n:
            if self._n == len(self._ids):
                self._ids, self._produced = (np.resize(array, 2 * self._n + 16) for array in (self._ids, self._produced))
            self._ids[slot], self._produced[slot] = token, 0
            self._n += 1
        self._produced[slot] += 1

    def remove(self, token: int) -> None:
        """The token that was added last never was."""
        slot = self._slot[token]
        self._produced[slot] -= 1
        if slot >= self._n_prompt and not self._produced[slot]:
            del self._slot[token]
            self._n -= 1
