"""Candidate tokens of a draft model, from which a shape selects the draft tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.kernels import sample
from dflash.kernels.sample import SampleParams


class Candidates(NamedTuple):
    """The likeliest tokens of the next T positions of one sequence, likeliest first.

    ids: int32 (T, K); tokens; -1 fills rows with fewer than K candidates.
    scores: float32 (T, K); log-probabilities, descending; minus infinity where `ids` is -1. If tokens are sampled, scores
        include the noise of their position and are normalised over the K candidates.
    edges: float32 (T, K, K), optional; scores of pairs: ``edges[t, i, j]`` is the log-probability of candidate j at position
        t after candidate i at position t - 1. Position 0 follows the last token of the sequence, so that all rows of
        ``edges[0]`` are equal. With `edges`, `scores` only define the candidates.
    """

    ids: NDArray[np.int32]
    scores: NDArray[np.float32]
    edges: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        """Return the number of positions."""
        return len(self.ids)

    @classmethod
    def nothing(cls, n: int, width: int) -> "Candidates":
        """Return empty candidates: `n` positions of at most `width` each."""
        return cls(np.full((n, width), -1, np.int32), np.full((n, width), -np.inf, np.float32))


def fill(
    found: Sequence[Candidates],
    at: int,
    logits: NDArray[np.float32],
    row_params: Sequence[SampleParams],
    first: Sequence[int],
    *,
    targets: NDArray[np.int32] | None = None,
) -> None:
    """Find candidates of one position of several sequences, from one row of logits each.

    found: candidates of each sequence, whose position `at` is written.
    logits: float32 (B, V); logits of the draft model, a row for each sequence.
    first: position in each sequence to which candidate position 0 belongs.
    targets: int32 (V,), optional; target token of each logit, if the draft vocabulary is not the target's.
    """
    n, width = len(found), max(each.ids.shape[1] for each in found)
    ids, scores = np.empty((n, width), np.int32), np.empty((n, width), np.float32)
    sample.candidates(logits, row_params, [place + at for place in first], width, ids=ids, scores=scores, targets=targets)
    put(found, at, ids, scores)


def put(found: Sequence[Candidates], at: int, ids: NDArray[np.int32], scores: NDArray[np.float32]) -> None:
    """Write candidate position `at` of several sequences, a row of `ids` and of `scores` each."""
    for each, row, row_scores in zip(found, ids, scores, strict=True):
        wide = each.ids.shape[1]
        each.ids[at], each.scores[at] = row[:wide], row_scores[:wide]
