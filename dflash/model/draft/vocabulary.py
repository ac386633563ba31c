"""Draft vocabularies: all tokens of the target, a vocabulary of the draft's own, or a subset of tokens."""

from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dflash.errors import FormatError, RequestError, Unsupported
from dflash.model.draft.files.source import Source

if TYPE_CHECKING:
    from dflash.model.cuda.model import DeviceModel
    from dflash.model.model import Model

Ids = NDArray[np.int32]

LARGE = 100_000
"""Tokens from which on a vocabulary counts as multilingual, so that a subset of it can cover texts of common languages."""

_NORMAL = 1
_TILE = 16


class Vocabulary:
    """Draft vocabulary: the rows of an LM head that are computed, and the target's token for each logit.

    parts: ranges of rows of the head, ascending; their logits stand side by side.
    targets: int32 (R,), optional; target token of each of the R logits; None if logit i is of token i.
    own: whether the head has rows for these tokens only.
    """

    def __init__(self, parts: tuple[slice, ...], targets: Ids | None = None, *, own: bool = False) -> None:
        self.parts, self.targets, self.own = parts, targets, own
        self._columns: Ids | None = None

    def __len__(self) -> int:
        return sum(part.stop - part.start for part in self.parts)

    def columns(self) -> list[slice]:
        """Return the range of logits of each part."""
        ends = np.cumsum([part.stop - part.start for part in self.parts]).tolist()
        return [slice(end - (part.stop - part.start), end) for part, end in zip(self.parts, ends, strict=True)]

    def has(self, token: int) -> bool:
        """Return True if the token is in the vocabulary; only valid for a head with the target's rows."""
        return any(part.start <= token < part.stop for part in self.parts)

    def column(self, ids: Ids) -> Ids:
        """Return the index of the logit of each token; the tokens must be in the vocabulary."""
        if self.targets is None:
            return ids
        if self._columns is None:
            self._columns = np.zeros(int(self.targets.max()) + 1, np.int32)
            self._columns[self.targets] = np.arange(len(self.targets))
        return self._columns[ids]

    def row(self, ids: Ids) -> Ids:
        """Return the row of the head for each token; the tokens must be in the vocabulary."""
        return self.column(ids) if self.own else ids


def vocabulary(source: Source, target: "Model | DeviceModel", n: int | None) -> Vocabulary:
    """Return the vocabulary of a draft model.

    n: use only the first `n` tokens, and the special tokens at the end. Tokens of a byte-pair encoding are in the order of
        its merges, which is roughly the order of their frequency.
    """
    shared = first(target, n)
    if source.has("d2t"):
        if n is not None:
            raise Unsupported(
                f"draft_vocab is {n}, but this draft has a vocabulary of its own, of {source.shapes['d2t'][-1]} tokens"
            )
        targets, n_vocab = source.targets(), target.config.n_vocab
        if targets.max() >= n_vocab:
            raise FormatError(f"tensor 'd2t' names token {targets.max()}, the target has {n_vocab}")
        return Vocabulary((slice(0, len(targets)),), targets, own=True)
    return shared


def first(target: "Model | DeviceModel", n: int | None) -> Vocabulary:
    """Return the vocabulary of the first `n` tokens of a target and its special tokens; all tokens if `n` is None."""
    n_vocab = target.config.n_vocab
    if n is not None and not (isinstance(n, Integral) and 1 <= n <= n_vocab):
        raise RequestError(f"draft_vocab is {n!r}, must be a whole number from 1 to {n_vocab}, the tokens of this model")
    if n is None or n >= _first_special(target):
        return Vocabulary((slice(0, n_vocab),))
    parts = _first(target, n)
    return Vocabulary(parts, np.concatenate([np.arange(part.start, part.stop, dtype=np.int32) for part in parts]))


def common(target: "Model | DeviceModel") -> tuple[Vocabulary, ...]:
    """Return subsets of the vocabulary that cover texts of the most common languages.

    Returns: the first two fifths and the first three fifths of a vocabulary of at least `LARGE` tokens, each with the
        special tokens; empty for a smaller vocabulary.

    Merges are in the order of their frequency, but not equally over all languages. Of the 248,320 tokens of Qwen3.5, the
    first 95,000 are nearly all of English and code, the next 53,000 are Chinese, the rest of other languages. Share of the
    tokens of a text that lie outside the first two fifths: code 0.03 to 0.15 %, English 0.2 to 0.5 %, German 6 to 9 %,
    Chinese 18 to 22 %, Russian 32 %. Outside the first three fifths: Chinese 0.2 to 0.5 %, the others nearly the same.
    """
    return tuple(Vocabulary(_first(target, n)) for n in n_common(target.config.n_vocab))


def n_common(n_vocab: int) -> tuple[int, ...]:
    """Return the sizes of the `common` subsets of a vocabulary of `n_vocab` tokens, without special tokens."""
    shares = (2, 3) if n_vocab >= LARGE else ()
    return tuple(n_vocab * share // 5 // _TILE * _TILE for share in shares)


def _first(target: "Model | DeviceModel", n: int) -> tuple[slice, ...]:
    """Return the ranges of the first `n` tokens and of the special tokens."""
    parts = slice(0, n), slice(max(n, _first_special(target)), target.config.n_vocab)
    return tuple(part for part in parts if part.start < part.stop)


def _first_special(target: "Model | DeviceModel") -> int:
    """Return the first special token after all ordinary ones, rounded down to a multiple of 16, the rows of a GPU tile."""
    n_vocab = target.config.n_vocab
    weights = target.weights if target.device == "cpu" else target.weights.host
    types = np.asarray(weights.metadata.get("tokenizer.ggml.token_type", []))
    ordinary = np.flatnonzero(types == _NORMAL)
    return n_vocab if not len(ordinary) else (int(ordinary[-1]) + 1) // _TILE * _TILE
