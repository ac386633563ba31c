"""The heads of DSpark: a correction of the logits by the previous token, and the confidence of each draft token."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.confidence import confidence, reach
from dflash.kernels.embed import embed
from dflash.kernels.linear import linear
from dflash.kernels.sample import candidates
from dflash.model.candidates import Candidates
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.files.source import Source
from dflash.model.draft.request import DraftRequest, draft_rows
from dflash.model.draft.selector import drawn, pair_codes
from dflash.model.draft.vocabulary import Vocabulary

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]


class Walked(NamedTuple):
    """Candidates (R, K) of all rows, and the confidence (R,) of the likeliest one."""

    ids: Ids
    scores: Floats
    confidence: Floats


class Markov:
    """Finds candidates position by position: the likeliest token of one position corrects the logits of the next.

    The corrected logits are ``logits[t] + w2 w1[previous token]`` over the whole vocabulary. Their largest entry is the
    first candidate of a position and the previous token of the next position. The other candidates are the next largest
    entries; `Candidates.edges` holds their scores after every candidate of the position before.

    min_confidence: the draft ends where the product of the confidences falls below this value.
    """

    def __init__(
        self, config: DraftConfig, source: Source, vocabulary: Vocabulary, slots: int, min_confidence: float
    ) -> None:
        self._vocabulary, self._least = vocabulary, min_confidence
        self._w1, self._w2 = source.matrix("markov_w1.weight"), source.matrix("markov_w2.weight")
        self._parts = [(self._w2.rows(part), at) for part, at in zip(vocabulary.parts, vocabulary.columns(), strict=True)]
        self._corrected = np.empty((slots, len(vocabulary)), np.float32)
        self._trust: Floats | None = None
        self._bias = 0.0
        if config.has_confidence:
            self._trust, self._bias = confidence_head(source)

    def __call__(self, requests: Sequence[DraftRequest], hidden: Floats, logits: Floats) -> list[Candidates]:
        """Find candidates; see `Chooser`."""
        walked, found = self._walk(requests, hidden, logits), []
        for request, part in draft_rows(requests):
            ids, scores = walked.ids[part, : request.n_candidates], walked.scores[part, : request.n_candidates]
            edges = self._edges(request, ids, scores, logits[part]) if request.n_candidates > 1 else None
            n = reach(walked.confidence[part], self._least)
            found.append(Candidates(ids[:n], scores[:n], None if edges is None else edges[:n]))
        return found

    def _walk(self, requests: Sequence[DraftRequest], hidden: Floats, logits: Floats) -> Walked:
        """Find the candidates of one position after another, for all requests together."""
        starts = np.cumsum([0, *(request.n_draft for request in requests)])
        width, n_rows = max(request.n_candidates for request in requests), int(starts[-1])
        walked = Walked(
            np.empty((n_rows, width), np.int32), np.empty((n_rows, width), np.float32), np.ones(n_rows, np.float32)
        )
        before = np.array([request.anchor for request in requests], np.int32)
        for t in range(max(request.n_draft for request in requests)):
            going = [i for i, request in enumerate(requests) if request.n_draft > t]
            rows = starts[going] + t
            codes = np.empty((len(going), self._w1.shape[1]), np.float32)
            embed(before[going], self._w1, codes)
            corrected = self._corrected[: len(going)]
            linear(codes, [part for part, _ in self._parts], [corrected[:, at] for _, at in self._parts])
            corrected += logits[rows]
            ids, scores = np.empty((len(going), width), np.int32), np.empty((len(going), width), np.float32)
            row_params, positions = zip(
                *((requests[i].params, requests[i].state.length + 1 + t) for i in going), strict=True
            )
            targets = self._vocabulary.targets
            candidates(corrected, row_params, positions, width, ids=ids, scores=scores, targets=targets)
            walked.ids[rows], walked.scores[rows] = ids, scores
            before[going] = np.maximum(ids[:, 0], 0)
            if self._trust is not None:
                walked.confidence[rows] = confidence(hidden[rows], codes, self._trust, self._bias)
        return walked

    def _edges(self, request: DraftRequest, ids: Ids, scores: Floats, logits: Floats) -> Floats:
        known = np.maximum(ids, 0)
        column = self._vocabulary.column(known)
        before, after = pair_codes(request.anchor, known, self._w1, self._vocabulary.row(known), self._w2)
        base = np.where(ids >= 0, np.take_along_axis(logits, column, axis=1), np.float32(-np.inf))
        edges = drawn(base[:, None] + before @ after.transpose(0, 2, 1), ids, request.params, request.state.length + 1)
        if request.params.scale is None:
            # the mass outside the candidates is taken to be the same after any token as after the likeliest one
            edges += np.log(np.exp(scores).sum(axis=1))[:, None, None]
        return edges


def confidence_head(source: Source) -> tuple[Floats, float]:
    """Return weight (D + K,) and bias of the confidence head."""
    bias = source.vector("conf_proj.bias").reshape(-1)[0] if source.has("conf_proj.bias") else 0.0
    return source.vector("conf_proj.weight").reshape(-1), float(bias)
