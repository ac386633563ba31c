"""Whether a text keeps to the common tokens of its model, so that guesses may, too."""

from collections import Counter, deque
from collections.abc import Sequence

from dflash.model.draft.vocabulary import Vocabulary

RECENT, FEW = 1024, 4
"""Of so many last tokens of a text no more than so many may be others: each may cut a chain, which spares little time."""


class VocabTracker:
    """Watches the tokens of a text.

    Parameters
    ----------
    draft_vocabs : sequence of Vocabulary
        The common ones, from fewer to more; empty if a draft has no use for them.
    n_vocab : int
        All tokens.
    counts : Counter of int
        Of steps by the number of tokens that did, special ones apart; not counted where nothing is common.
    """

    def __init__(self, draft_vocabs: Sequence[Vocabulary], n_vocab: int, counts: Counter[int]) -> None:
        self._n_seen, self._latest, self._counts = 0, None, counts
        self._sizes = {None: n_vocab} | {i: vocab.parts[0].stop for i, vocab in enumerate(draft_vocabs)}
        self._others = [(vocab, deque[int]()) for vocab in draft_vocabs]

    def select(self, text: Sequence[int]) -> int | None:
        """Which common tokens do for guesses under this text, which goes on from where it was last time; None if none do."""
        start = len(text) - RECENT
        new = range(max(self._n_seen, start, 0), len(text))
        self._n_seen = len(text)
        for vocab, others in self._others:
            others.extend(i for i in new if not vocab.has(text[i]))
            while others and others[0] < start:
                others.popleft()
        self._latest = next((i for i, (_, others) in enumerate(self._others) if len(others) <= FEW), None)
        return self._latest

    def count(self) -> None:
        """A step guesses from what `select` has said last."""
        if self._others:
            self._counts[self._sizes[self._latest]] += 1
