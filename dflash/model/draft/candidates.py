"""Find candidate tokens from the logits of a block."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dflash.kernels import sample
from dflash.kernels.profile import timed
from dflash.model.candidates import Candidates
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.files.source import Source
from dflash.model.draft.markov import Markov
from dflash.model.draft.request import DraftRequest, draft_rows
from dflash.model.draft.selector import Selector
from dflash.model.draft.vocabulary import Vocabulary

Floats = NDArray[np.float32]

Chooser = Callable[[Sequence[DraftRequest], Floats, Floats], list[Candidates]]
"""Maps requests, their draft rows (R, D) after the final norm and logits (R, V) to candidates of each request."""

find = timed("candidates")(sample.candidates)


class IndependentTokens:
    """Finds the likeliest tokens of each row, independently of the other rows."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._targets = vocabulary.targets

    def __call__(self, requests: Sequence[DraftRequest], hidden: Floats, logits: Floats) -> list[Candidates]:  # noqa: ARG002
        """Find candidates; see `Chooser`."""
        width = max(request.n_candidates for request in requests)
        row_params = [request.params for request in requests for _ in range(request.n_draft)]
        positions = [request.state.length + 1 + i for request in requests for i in range(request.n_draft)]
        ids, scores = np.empty((len(row_params), width), np.int32), np.empty((len(row_params), width), np.float32)
        find(logits, row_params, positions, width, ids=ids, scores=scores, targets=self._targets)
        return [
            Candidates(ids[part, : request.n_candidates], scores[part, : request.n_candidates])
            for request, part in draft_rows(requests)
        ]


def chooser(config: DraftConfig, source: Source, vocabulary: Vocabulary, slots: int, min_confidence: float) -> Chooser:
    """Make the function that finds candidates for a kind of draft model."""
    if config.kind == "dflash2":
        return Selector(config, source, vocabulary.targets)
    if config.kind == "dspark":
        return Markov(config, source, vocabulary, slots, min_confidence)
    return IndependentTokens(vocabulary)
