"""Draft by prompt lookup: repeat what followed an earlier occurrence of the last tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import Drafter, Rows
from dflash.decode.registry import register
from dflash.decode.sampling.params import check_whole
from dflash.decode.settings import spelled
from dflash.errors import RequestError
from dflash.kernels.lookup import Index

if TYPE_CHECKING:
    from dflash.decode.step import Step
    from dflash.decode.view import SessionView
    from dflash.model.batch import Forward
    from dflash.model.protocols.target import TargetModel

EXPECTED = 1024
"""Output tokens for which the index has room at first; it grows when needed."""


@register("lookup", number="TOKENS", parameter="n_draft")
@dataclass(frozen=True, repr=False)
class PromptLookup(Drafter["_PromptLookupState"]):
    """Find the longest n-gram that ends the sequence and occurred in it before, and draft the tokens that followed it.

    Parameters
    ----------
    max_ngram, min_ngram : int
        Longest and shortest n-gram to look for. Of several matches of equal length, the most recent one counts.
    n_draft : int
        Number of draft tokens. If the tokens that followed reach the end of the sequence, they are repeated. With the last
        token, 7 make a forward of 8 rows; each further row costs more.

    Raises
    ------
    RequestError
        If a setting is below 1 or `max_ngram` is below `min_ngram`.

    References
    ----------
    Saxena 2023, Prompt Lookup Decoding; Yang et al. 2023, Inference with Reference, arXiv 2304.04487.
    """

    instant = True

    max_ngram: int = 8
    min_ngram: int = 2
    n_draft: int = 7
    __repr__ = spelled

    def __post_init__(self) -> None:
        for name in ("min_ngram", "max_ngram", "n_draft"):
            check_whole(f"{self!r}: {name}", getattr(self, name), 1)
        if self.max_ngram < self.min_ngram:
            raise RequestError(f"{self!r}: max_ngram must not be below min_ngram")

    def start(self, session: SessionView, model: TargetModel, snapshot: Any = None) -> _PromptLookupState:  # noqa: ARG002
        """Return a state with an index of the session's tokens."""
        return _PromptLookupState(self, session)


class IndexState:
    """State of a drafter that looks up the last tokens of a session in an index of all of them."""

    capture: tuple[int, ...] = ()

    def __init__(self, session: SessionView, n_draft: int, index: Index) -> None:
        self._session, self._n_draft, self._index = session, n_draft, index
        self.shape = session.strategy.shape

    def begin_draft(self, max_draft: int) -> int:
        """Index the latest tokens; return how many to draft."""
        self._read(len(self._session.token_ids))
        return min(max_draft, self._n_draft, getattr(self.shape, "depth", None) or self._n_draft)

    def observe(self, step: Step, out: Forward, rows: Rows) -> None:  # noqa: ARG002
        """Index a long prompt chunk by chunk during prefill."""
        self._read(self._session.n_prefilled)

    def snapshot(self) -> None:
        """Return None: an index is made anew from the tokens."""

    def close(self) -> None:
        """Do nothing: only the state refers to the index."""

    def _read(self, n: int) -> None:
        have = len(self._index)
        if n > have:
            self._index.append(self._session.token_ids[have:n])


class _PromptLookupState(IndexState):
    def __init__(self, drafter: PromptLookup, session: SessionView) -> None:
        index = Index(drafter.min_ngram, drafter.max_ngram, session.n_prompt + EXPECTED)
        super().__init__(session, drafter.n_draft, index)
        # after L matching tokens, the next one is assumed to differ with probability 1 / (L + 1)
        self._scores = -np.log1p(1 / np.arange(1, drafter.max_ngram + drafter.n_draft, dtype=np.float32))

    def propose(self, max_draft: int) -> Draft:
        n = self.begin_draft(max_draft)
        length, follower = self._index.match()
        if not length or n < 1:
            return EMPTY
        return Draft(self._index.following(follower, n), scores=self._scores[length - 1 : length - 1 + n])
