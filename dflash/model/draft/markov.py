"""The heads of DSpark: a correction of the logits by the token before, and how far the guesses are to be trusted."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.confidence import reach, trust
from dflash.kernels.embed import embed
from dflash.kernels.linear import linear
from dflash.kernels.sample import candidates
from dflash.model.candidates import Candidates
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.request import Ask
from dflash.model.draft.selector import drawn
from dflash.model.draft.source import Source
from dflash.model.draft.vocabulary import Vocabulary

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]


class Walked(NamedTuple):
    """Candidates (R, K) of all rows after the walk, and how far each is to be trusted (R,)."""

    ids: Ids
    scores: Floats
    trust: Floats


class Markov:
    """Walks through the positions: the likeliest token of one corrects the logits of the next.

    ``logits[t] + w2 w1[token before]``, over the whole vocabulary along the walk, which is the first candidate of every
    position. The others are the likeliest next to it; `Candidates.edges` holds their scores after every candidate before.

    Parameters
    ----------
    config : DraftConfig
    source : Source
    vocabulary : Vocabulary
    slots : int
        Most asks at a time.
    confidence : float
        Positions end where the product of the confidences falls below it.
    """

    def __init__(self, config: DraftConfig, source: Source, vocabulary: Vocabulary, slots: int, confidence: float) -> None:
        self._vocabulary, self._least = vocabulary, confidence
        self._w1, self._w2 = source.matrix("markov_w1.weight"), source.matrix("markov_w2.weight")
        self._parts = [(self._w2.rows(part), at) for part, at in zip(vocabulary.parts, vocabulary.columns(), strict=True)]
        self._corrected = np.empty((slots, len(vocabulary)), np.float32)
        self._trust: Floats | None = None
        self._bias = 0.0
        if config.has_confidence:
            self._trust, self._bias = confidence_head(source)

    def __call__(self, asks: Sequence[Ask], hidden: Floats, logits: Floats) -> list[Candidates]:
        """See `Chooser`."""
        walked, found, start = self._walk(asks, hidden, logits), [], 0
        for ask in asks:
            part = slice(start, start + ask.n)
            ids, scores = walked.ids[part, : ask.width], walked.scores[part, : ask.width]
            edges = self._edges(ask, ids, scores, logits[part]) if ask.width > 1 else None
            n = reach(walked.trust[part], self._least)
            found.append(Candidates(ids[:n], scores[:n], None if edges is None else edges[:n]))
            start += ask.n
        return found

    def _walk(self, asks: Sequence[Ask], hidden: Floats, logits: Floats) -> Walked:
        """Position after position, all texts together."""
        starts = np.cumsum([0, *(ask.n for ask in asks)])
        width, n_rows = max(ask.width for ask in asks), int(starts[-1])
        walked = Walked(
            np.empty((n_rows, width), np.int32), np.empty((n_rows, width), np.float32), np.ones(n_rows, np.float32)
        )
        before = np.array([ask.anchor for ask in asks], np.int32)
        for t in range(max(ask.n for ask in asks)):
            going = [i for i, ask in enumerate(asks) if ask.n > t]
            rows = starts[going] + t
            codes = np.empty((len(going), self._w1.shape[1]), np.float32)
            embed(before[going], self._w1, codes)
            corrected = self._corrected[: len(going)]
            linear(codes, [part for part, _ in self._parts], [corrected[:, at] for _, at in self._parts])
            corrected += logits[rows]
            ids, scores = np.empty((len(going), width), np.int32), np.empty((len(going), width), np.float32)
            laws, positions = zip(*((asks[i].law, asks[i].state.length + 1 + t) for i in going), strict=True)
            targets = self._vocabulary.targets
            candidates(corrected, laws, positions, width, ids=ids, scores=scores, targets=targets)
            walked.ids[rows], walked.scores[rows] = ids, scores
            before[going] = np.maximum(ids[:, 0], 0)
            if self._trust is not None:
                walked.trust[rows] = trust(hidden[rows], codes, self._trust, self._bias)
        return walked

    def _edges(self, ask: Ask, ids: Ids, scores: Floats, logits: Floats) -> Floats:
        n, width = ids.shape
        before, after = np.empty((2, n * width, self._w1.shape[1]), np.float32)
        known = np.maximum(ids, 0)
        column = self._vocabulary.column(known)
        embed(np.concatenate([np.full(width, ask.anchor, np.int32), known[:-1].reshape(-1)]), self._w1, before)
        embed(self._vocabulary.row(known).reshape(-1), self._w2, after)
        before, after = (rows.reshape(n, width, -1) for rows in (before, after))
        base = np.where(ids >= 0, np.take_along_axis(logits, column, axis=1), np.float32(-np.inf))
        edges = drawn(base[:, None] + before @ after.transpose(0, 2, 1), ids, ask.law, ask.state.length + 1)
        if ask.law.scale is None:
            # of what is no candidate there is about as much after any token as there is along the walk
            edges += np.log(np.exp(scores).sum(axis=1))[:, None, None]
        return edges


def confidence_head(source: Source) -> tuple[Floats, float]:
    """Weight (H + K,) and bias of the confidences."""
    bias = source.vector("conf_proj.bias").reshape(-1)[0] if source.has("conf_proj.bias") else 0.0
    return source.vector("conf_proj.weight").reshape(-1), float(bias)
