"""Drafts that know fewer tokens than their target."""

import numpy as np
from numpy.typing import NDArray

from dflash.errors import FormatError

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]


class Spread:
    """Gives every token of the target a place in a row of logits.

    Parameters
    ----------
    targets : int32 (R,) or None
        For each token of the draft, that of the target; None if they are the same.
    n_vocab : int
        Of the target.

    Raises
    ------
    FormatError
        If the target has no such token.
    """

    def __init__(self, targets: Ids | None, n_vocab: int) -> None:
        self._targets = targets
        self._wide = np.full((0, n_vocab), -np.inf, np.float32)
        if targets is not None:
            if targets.max() >= n_vocab:
                raise FormatError(f"tensor 'd2t' names token {targets.max()}, the target has {n_vocab}")
            self._own = np.zeros(n_vocab, np.int32)
            self._own[targets] = np.arange(len(targets))

    def __call__(self, logits: Floats) -> Floats:
        """Logits (N, R) as (N, V), minus infinity where the draft knows no such token; they last until the next call."""
        if self._targets is None:
            return logits
        if len(logits) > len(self._wide):
            self._wide = np.full((len(logits), self._wide.shape[1]), -np.inf, np.float32)
        wide = self._wide[: len(logits)]
        wide[:, self._targets] = logits
        return wide

    def own(self, ids: Ids) -> Ids:
        """What the draft calls tokens of the target that it knows."""
        return ids if self._targets is None else self._own[ids]
