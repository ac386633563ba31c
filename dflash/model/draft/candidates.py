"""From the logits of a block to candidates."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dflash.kernels import sample
from dflash.kernels.profile import timed
from dflash.model.candidates import Candidates
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.markov import Markov
from dflash.model.draft.request import Ask
from dflash.model.draft.selector import Selector
from dflash.model.draft.source import Source
from dflash.model.draft.vocabulary import Vocabulary

Floats = NDArray[np.float32]

Chooser = Callable[[Sequence[Ask], Floats, Floats], list[Candidates]]
"""From asks, the rows that guess (R, H) after the final norm and their logits (R, V), one text after another."""

find = timed("candidates")(sample.candidates)


class Likeliest:
    """The likeliest tokens of each row by itself.

    Parameters
    ----------
    vocabulary : Vocabulary
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._targets = vocabulary.targets

    def __call__(self, asks: Sequence[Ask], hidden: Floats, logits: Floats) -> list[Candidates]:  # noqa: ARG002
        """See `Chooser`."""
        width = max(ask.width for ask in asks)
        laws = [ask.law for ask in asks for _ in range(ask.n)]
        positions = [ask.state.length + 1 + i for ask in asks for i in range(ask.n)]
        ids, scores = np.empty((len(laws), width), np.int32), np.empty((len(laws), width), np.float32)
        find(logits, laws, positions, width, ids=ids, scores=scores, targets=self._targets)
        found, start = [], 0
        for ask in asks:
            part = slice(start, start + ask.n)
            found.append(Candidates(ids[part, : ask.width], scores[part, : ask.width]))
            start += ask.n
        return found


def chooser(config: DraftConfig, source: Source, vocabulary: Vocabulary, slots: int, confidence: float) -> Chooser:
    """Make what a kind of draft chooses its candidates by.

    Parameters
    ----------
    config : DraftConfig
    source : Source
    vocabulary : Vocabulary
    slots : int
        Most asks at a time.
    confidence : float
        As for `BlockDraft`.
    """
    if config.kind == "dflash2":
        return Selector(config, source, vocabulary.targets)
    if config.kind == "dspark":
        return Markov(config, source, vocabulary, slots, confidence)
    return Likeliest(vocabulary)
