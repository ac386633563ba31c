"""Draft by suffix decoding: what followed earlier occurrences of the last tokens, as a tree by frequency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dflash.decode.drafters.prompt_lookup import EXPECTED, IndexState
from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import Drafter
from dflash.decode.drafting.shapes import Chain
from dflash.decode.registry import NameCall, Named, register
from dflash.decode.sampling.params import check_whole
from dflash.decode.settings import spelled
from dflash.errors import RequestError
from dflash.kernels.lookup import Index
from dflash.model.attachments import Recent

if TYPE_CHECKING:
    from dflash.decode.view import SessionView
    from dflash.model.protocols.target import TargetModel

STORE = 1 << 17
"""Tokens of answers that ``suffix-shared`` remembers for each `cache_salt`: 11.5 MB with the index."""

_SALTS = 8
"""Values of `cache_salt` whose answers are remembered, the latest used ones."""

_OCCURRENCES = 64
"""Most earlier occurrences that are counted, the latest ones."""

_LONGEST = 32
"""Most tokens by which two occurrences are compared."""

_WEIGHT = 2.0
"""Weight of an occurrence over one that is equal for one token less."""

_LEAST = 0.1
"""Probability below which a token is not drafted: 1.3 % of draft tokens and 0.2 % of output less, on 40 edits of code."""

_END = -1


def _make_shared(call: NameCall) -> Named:
    return Named(SuffixDecoding(store=STORE) if call.number is None else SuffixDecoding(n_draft=call.number, store=STORE))


def _spell_shared(strategy: Any) -> str | None:
    drafter = strategy.drafter
    if drafter != SuffixDecoding(n_draft=drafter.n_draft, store=STORE):
        return None
    return "suffix-shared" if drafter == SuffixDecoding(store=STORE) else f"suffix-shared:{drafter.n_draft}"


@register(
    "suffix-shared",
    number="TOKENS",
    make=_make_shared,
    spell=_spell_shared,
    about="Suffix decoding that also drafts from the answers to earlier requests.",
)
@register("suffix", number="TOKENS", parameter="n_draft")
@dataclass(frozen=True, repr=False)
class SuffixDecoding(Drafter["_SuffixState"]):
    """Find all earlier occurrences of the tokens that end the sequence, and draft the most frequent continuations as a tree.

    Prompt lookup follows one occurrence. Here each counts, the more, the more tokens before it are equal; tokens that are
    unlikely are not drafted, so that drafts are long only where the text repeats itself.

    Parameters
    ----------
    n_draft : int
        Most draft tokens.
    min_ngram, max_ngram : int
        Tokens that must be equal, and length up to which a longer match alone counts.
    store : int
        Tokens of answers to earlier requests that are searched, too, but for those with another `cache_salt`. With it,
        acceptance depends on what was asked before: measurements use 0.

    Raises
    ------
    RequestError
        If a setting is below its minimum or `max_ngram` is below `min_ngram`.

    References
    ----------
    Oliaro et al. 2024, SuffixDecoding, arXiv 2411.04975.
    """

    instant = True

    n_draft: int = 7
    min_ngram: int = 2
    max_ngram: int = 8
    store: int = 0
    __repr__ = spelled

    def __post_init__(self) -> None:
        for name in ("min_ngram", "max_ngram", "n_draft"):
            check_whole(f"{self!r}: {name}", getattr(self, name), 1)
        check_whole(f"{self!r}: store", self.store, 0)
        if self.max_ngram < self.min_ngram:
            raise RequestError(f"{self!r}: max_ngram must not be below min_ngram")

    def start(self, session: SessionView, model: TargetModel, snapshot: Any = None) -> _SuffixState:  # noqa: ARG002
        """Return a state with an index of the session's tokens, and the store of the model."""
        store = None
        if self.store:
            stores = model.attachments.setdefault(self, Recent[str, AnswerStore](_SALTS))
            store = stores.recall(session.cache_salt) or AnswerStore(self)
            stores.keep(session.cache_salt, store)
        return _SuffixState(self, session, store)


class AnswerStore:
    """Tokens of the latest answers, at most as many as the drafter's `store`, with an index."""

    def __init__(self, drafter: SuffixDecoding) -> None:
        self._drafter, self.index = drafter, _index_of(drafter, drafter.store)

    def add(self, token_ids: list[int]) -> None:
        """Add an answer; if there is no room, the older half goes first."""
        if not token_ids:
            return
        token_ids = [*token_ids[: self._drafter.store // 2], _END]
        if len(self.index) + len(token_ids) > self._drafter.store:
            kept = self.index.tail(self._drafter.store // 2).tolist()
            self.index = _index_of(self._drafter, self._drafter.store)
            self.index.append(kept)
        self.index.append(token_ids)


class _Tree(NamedTuple):
    """Draft tokens, the likeliest first.

    tokens, parents: int32 (N,), int64 (N,)
    worth: float64 (N,); probability that each is accepted.
    """

    tokens: np.ndarray
    parents: np.ndarray
    worth: np.ndarray

    @classmethod
    def of(cls, index: Index, query: np.ndarray, n: int, *, chain: bool) -> _Tree | None:
        """Return the likeliest `n` tokens after the occurrences of a query, of a chain if wanted; None if there is none."""
        ends, lengths = index.occurrences(query, _OCCURRENCES)
        if not len(ends):
            return None
        longest = int(lengths.max())
        tokens, parents, worth = index.continuations(ends, _WEIGHT ** (lengths - longest), n)
        depths = np.zeros(len(tokens) + 1, np.int64)  # the last entry belongs to the root
        for i, parent in enumerate(parents.tolist()):
            depths[i] = depths[parent] + 1
        # after L equal tokens, the next one is assumed to differ with probability 1 / (L + 1)
        worth = worth * np.cumprod(1 - 1 / (longest + np.arange(1, n + 2)))[depths[:-1] - 1]
        order = np.argsort(-worth, kind="stable")
        if chain:
            order = _first_path(order, parents)
        order = order[:n][worth[order[:n]] >= _LEAST]
        place = np.full(len(tokens) + 1, -1)
        place[order] = np.arange(len(order))
        return cls(tokens[order], place[parents[order]], worth[order])

    def draft(self) -> Draft:
        """Return the draft; one without forks has scores."""
        tokens, parents, worth = self
        if (parents != np.arange(-1, len(tokens) - 1)).any():
            return Draft(tokens, parents)
        return Draft(tokens, scores=np.log(worth / np.append(1.0, worth[:-1])).astype(np.float32))


class _SuffixState(IndexState):
    def __init__(self, drafter: SuffixDecoding, session: SessionView, store: AnswerStore | None) -> None:
        super().__init__(session, drafter.n_draft, _index_of(drafter, session.n_prompt + EXPECTED))
        self._store = store

    def propose(self, max_draft: int) -> Draft:
        n = self.begin_draft(max_draft)
        if n < 1:
            return EMPTY
        indices = [self._index] if self._store is None else [self._index, self._store.index]
        query, is_chain = self._index.tail(_LONGEST), isinstance(self.shape, Chain)
        trees = [tree for index in indices if (tree := _Tree.of(index, query, n, chain=is_chain)) is not None]
        return max(trees, key=lambda tree: tree.worth.sum()).draft() if trees else EMPTY

    def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.add(self._session.token_ids[self._session.n_prompt :])


def _first_path(order: np.ndarray, parents: np.ndarray) -> np.ndarray:
    """Return the nodes of the path that takes the first child in `order` each time."""
    path, node = [], -1
    for i in order.tolist():
        if parents[i] == node:
            node = i
            path.append(i)
    return np.array(path, np.int64)


def _index_of(drafter: SuffixDecoding, room: int) -> Index:
    return Index(drafter.min_ngram, drafter.max_ngram, room, all_of_them=True)
