"""The selector of DFlash 2, which scores each candidate of a position after each candidate of the position before."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dflash.kernels import sample
from dflash.kernels.embed import embed
from dflash.kernels.formats import Matrix
from dflash.kernels.linear import linear
from dflash.kernels.sample import SampleParams
from dflash.model.candidates import Candidates
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.files.source import Source
from dflash.model.draft.request import DraftRequest, draft_rows

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]


class Selector:
    """Scores pairs of candidates by two codebooks and a gate computed from the position's hidden state.

    ``score(a, j) = logit[j] + sum(predecessor[a] * gate * successor[j])``. The candidates are the tokens with the largest
    logits, whatever the sampling parameters; their number is the one that the model was trained with.

    targets: int32 (R,), optional; target token of each logit; None if the logits are in the order of the target's ids.
    """

    def __init__(self, config: DraftConfig, source: Source, targets: Ids | None = None) -> None:
        self._targets = targets
        self._rank, self._top = config.selector_rank, config.selector_top
        self._hidden = source.matrix("selector_hidden.weight")
        self._predecessor, self._successor = (
            source.matrix(f"selector_{side}.weight") for side in ("predecessor", "successor")
        )

    def __call__(self, requests: Sequence[DraftRequest], hidden: Floats, logits: Floats) -> list[Candidates]:
        """Find candidates; see `dflash.model.draft.candidates.Chooser`."""
        gates = np.empty((len(hidden), self._rank), np.float32)
        linear(hidden, (self._hidden,), (gates,))
        width = min(self._top, logits.shape[1])
        ids, values = np.empty((len(logits), width), np.int32), np.empty((len(logits), width), np.float32)
        for row, of_row, value in zip(logits, ids, values, strict=True):
            sample.top_k(row, ids=of_row, values=value)
        if self._targets is not None:
            ids = np.where(ids < 0, ids, self._targets[ids])
        return [self._pairs(request, gates[part], ids[part], values[part]) for request, part in draft_rows(requests)]

    def _pairs(self, request: DraftRequest, gates: Floats, ids: Ids, values: Floats) -> Candidates:
        known = np.maximum(ids, 0)
        before, after = pair_codes(request.anchor, known, self._predecessor, known, self._successor)
        with np.errstate(all="ignore"):
            lift = (before * gates[:, None]) @ after.transpose(0, 2, 1)
        scores = values[:, None] + lift.astype(np.float32, copy=False)
        broken = ~np.isfinite(scores).all(axis=2, where=ids[:, None] >= 0)
        scores[broken] = np.broadcast_to(values[:, None], scores.shape)[broken]
        position = request.state.length + 1
        return Candidates(ids, log_softmax(values), drawn(scores, ids, request.params, position))


def pair_codes(anchor: int, ids: Ids, before: Matrix, rows: Ids, after: Matrix) -> tuple[Floats, Floats]:
    """Return codes (T, K, rank) of the candidates before each position, and of those at each position.

    anchor: token before position 0.
    before, after: codebooks; candidate j at position t has row ``rows[t, j]`` of `after`.
    """
    n, width = ids.shape
    codes = np.empty((2, n * width, before.shape[1]), np.float32)
    embed(np.concatenate([np.full(width, anchor, np.int32), ids[:-1].reshape(-1)]), before, codes[0])
    embed(rows.reshape(-1), after, codes[1])
    first, second = codes.reshape(2, n, width, -1)
    return first, second


def drawn(scores: Floats, ids: Ids, params: SampleParams, first: int) -> Floats:
    """Return log-probabilities of candidates after each previous candidate, with the noise by which tokens are sampled.

    scores: float32 (T, K, K); logit of candidate j at position t after candidate i at position t - 1.
    ids: int32 (T, K); candidate tokens; -1 fills rows with fewer than K.
    first: position of row 0 in the sequence.
    Returns: float32 (T, K, K); log-probabilities, normalised over j.
    """
    if params.scale is None:
        return log_softmax(scores)
    scaled = (scores - scores.max(axis=2, keepdims=True)) * np.float32(params.scale)
    least = np.maximum(_least(scaled, params), np.float32(params.floor))
    noise = np.empty(ids.shape, np.float32)
    for t, (tokens, of_row) in enumerate(zip(ids, noise, strict=True)):
        sample.gumbel(params.seed, first + t, np.maximum(tokens, 0), out=of_row)
    return log_softmax(np.where(scaled >= least, scaled + noise[:, None], np.float32(-np.inf)))


def _least(scaled: Floats, params: SampleParams) -> Floats:
    """Return the smallest scaled logit (T, K, 1) that top-k and top-p keep among the candidates."""
    ordered = -np.sort(-scaled, axis=2)[..., : params.top_k or None]
    mass = np.cumsum(np.exp(ordered, dtype=np.float64), axis=2)
    kept = (
        np.count_nonzero(mass[..., :-1] < params.top_p * mass[..., -1:], axis=2)
        if params.top_p < 1
        else ordered.shape[2] - 1
    )
    return np.take_along_axis(ordered, np.broadcast_to(kept, ordered.shape[:2])[..., None], axis=2)


def log_softmax(x: Floats) -> Floats:
    """Return the log-softmax along the last axis; each row must have a finite entry, and minus infinity stays."""
    x = x - x.max(axis=-1, keepdims=True)
    return (x - np.log(np.exp(x, dtype=np.float64).sum(axis=-1, keepdims=True))).astype(np.float32)
