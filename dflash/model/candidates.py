"""What a draft model thinks of the next tokens, before a shape makes guesses of it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


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
