"""The token ids that logits processors see."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dflash.decode.grammar.state import GrammarState


class History:
    """Ids of the path to one node of a draft: prompt, output and the draft tokens above the node.

    Processors read it; only `verify` and the session change it. Between two calls of a processor it may have grown, or been
    truncated and grown again. A processor with a state of its own must account for that.

    token_ids: ids of prompt and output; the next token follows the last one.
    counts: occurrences of each token; None unless `count` was called.
    """

    __slots__ = ("counts", "grammar", "n_prompt", "token_ids")

    def __init__(self, prompt: Sequence[int]) -> None:
        self.token_ids = list(prompt)
        self.n_prompt = len(self.token_ids)
        self.counts: Counts | None = None
        self.grammar: GrammarState | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def n_produced(self) -> int:
        """Number of ids after the prompt."""
        return len(self.token_ids) - self.n_prompt

    def count(self) -> None:
        """Maintain `counts` from now on."""
        if self.counts is None:
            self.counts = Counts(self.token_ids[: self.n_prompt])
            for token in self.token_ids[self.n_prompt :]:
                self.counts.add(token)

    def push(self, token: int) -> None:
        """Append a token. Raises a DFlashError, and stays, if the grammar refuses the token."""
        if self.grammar is not None:
            self.grammar.push(token, len(self.token_ids))
        self.token_ids.append(token)
        if self.counts is not None:
            self.counts.add(token)

    def cut(self, length: int) -> None:
        """Truncate to the first `length` ids; the prompt always remains."""
        if self.counts is not None:
            for token in reversed(self.token_ids[length:]):
                self.counts.remove(token)
        n = len(self.token_ids) - max(length, self.n_prompt)
        del self.token_ids[length:]
        if self.grammar is not None:
            self.grammar.cut(n)


class Counts:
    """The distinct tokens of a sequence, and how often each occurs in the output."""

    def __init__(self, prompt: Sequence[int]) -> None:
        first = dict.fromkeys(prompt)
        self._slot = {token: i for i, token in enumerate(first)}
        self._n_prompt = self._n = len(first)
        self._ids = np.fromiter(first, np.int64, self._n)
        self._produced = np.zeros(self._n, np.float32)

    @property
    def ids(self) -> NDArray[np.int64]:
        """Distinct tokens in the order of their first occurrence."""
        return self._ids[: self._n]

    @property
    def produced(self) -> NDArray[np.float32]:
        """Number of occurrences of each in the output."""
        return self._produced[: self._n]

    def of(self, token: int) -> float:
        """Return the number of occurrences of a token in the output."""
        slot = self._slot.get(token)
        return 0.0 if slot is None else float(self._produced[slot])

    def add(self, token: int) -> None:
        """Count one more occurrence of a token."""
        slot = self._slot.setdefault(token, self._n)
        if slot == self._n:
            if self._n == len(self._ids):
                n = 2 * self._n + 16
                self._ids, self._produced = np.resize(self._ids, n), np.resize(self._produced, n)
            self._ids[slot], self._produced[slot] = token, 0
            self._n += 1
        self._produced[slot] += 1

    def remove(self, token: int) -> None:
        """Undo the last `add`, which was of this token."""
        slot = self._slot[token]
        self._produced[slot] -= 1
        if slot >= self._n_prompt and not self._produced[slot]:
            del self._slot[token]
            self._n -= 1
