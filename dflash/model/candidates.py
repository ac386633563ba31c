"""What a draft model thinks of the next tokens, before a shape makes guesses of it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.kernels import sample
from dflash.kernels.sample import SampleParams


class Candidates(NamedTuple):
    """The likeliest tokens of the next D positions of one text, likeliest first.

    Parameters
    ----------
    ids : int32 (D, K)
        Tokens; -1 where there are fewer.
    scores : float32 (D, K)
        Log-probabilities, descending; minus infinity where there are fewer. Where tokens are drawn, noise of their position
        is in them, and they are normalised over the K.
    edges : float32 (D, K, K), optional
        Where a token depends on the one before it: ``edges[t, i, j]`` is the log-probability of candidate j at position t
        after candidate i at position t - 1. Position 0 follows the last token of the text: ``edges[0, 0]``, the other rows
        of it are the same. `scores` then only tell which tokens are candidates.
    """

    ids: NDArray[np.int32]
    scores: NDArray[np.float32]
    edges: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        """Positions."""
        return len(self.ids)

    @classmethod
    def nothing(cls, n: int, width: int) -> "Candidates":
        """Room for `width` candidates at each of `n` positions."""
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
    """Write what one row of logits for each of several texts proposes.

    Parameters
    ----------
    found : sequence of Candidates
        One a text; the position `at` of each is written.
    at : int
    logits : float32 (R, V)
        Of the draft, a row for each text.
    row_params : sequence of SampleParams
        How the target draws.
    first : sequence of int
        Of each text, the place of position 0.
    targets : int32 (V,), optional
        The tokens that the logits are of, where these are not all.
    """
    n, width = len(found), max(each.ids.shape[1] for each in found)
    ids, scores = np.empty((n, width), np.int32), np.empty((n, width), np.float32)
    sample.candidates(logits, row_params, [place + at for place in first], width, ids=ids, scores=scores, targets=targets)
    put(found, at, ids, scores)


def put(found: Sequence[Candidates], at: int, ids: NDArray[np.int32], scores: NDArray[np.float32]) -> None:
    """Write the position `at` of several texts, a row of `ids` and of `scores` each."""
    for each, row, row_scores in zip(found, ids, scores, strict=True):
        wide = each.ids.shape[1]
        each.ids[at], each.scores[at] = row[:wide], row_scores[:wide]
