"""Choose the draft vocabulary of a sequence by its recent tokens."""

from collections import Counter, deque
from collections.abc import Sequence

from dflash.model.draft.vocabulary import Vocabulary

RECENT, FEW = 1024, 4
"""Window in tokens, and tokens in it that may lie outside the draft vocabulary.

Each token outside the draft vocabulary ends a draft early, and a smaller vocabulary saves little time.
"""


class VocabTracker:
    """Counts the tokens of one sequence outside each draft vocabulary.

    draft_vocabs: draft vocabularies, the smallest first; empty if the draft model always uses the whole vocabulary.
    counts: number of steps by size of the draft vocabulary, special tokens not counted. Not changed if `draft_vocabs` is
        empty.
    """

    def __init__(self, draft_vocabs: Sequence[Vocabulary], n_vocab: int, counts: Counter[int]) -> None:
        self._n_seen, self._counts = 0, counts
        self._latest: int | None = None
        self._sizes: dict[int | None, int] = {None: n_vocab} | {
            i: vocab.parts[0].stop for i, vocab in enumerate(draft_vocabs)
        }
        self._others = [(vocab, deque[int]()) for vocab in draft_vocabs]

    def select(self, token_ids: Sequence[int]) -> int | None:
        """Return the index of the smallest draft vocabulary that fits the sequence; None if none does.

        Call it with the same, growing sequence.
        """
        start = len(token_ids) - RECENT
        new = range(max(self._n_seen, start, 0), len(token_ids))
        self._n_seen = len(token_ids)
        for vocab, others in self._others:
            others.extend(i for i in new if not vocab.has(token_ids[i]))
            while others and others[0] < start:
                others.popleft()
        self._latest = next((i for i, (_, others) in enumerate(self._others) if len(others) <= FEW), None)
        return self._latest

    def count(self) -> None:
        """Count a draft from the vocabulary that `select` returned last."""
        if self._others:
            self._counts[self._sizes[self._latest]] += 1
