"""The tokens that a draft guesses from: all of its target's, those of a vocabulary of its own, or some."""

from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.errors import FormatError, RequestError, Unsupported
from dflash.model.draft.source import Source

Ids = NDArray[np.int32]

LARGE = 100_000
"""Tokens from which on a vocabulary is that of many languages."""

_NORMAL = 1
_TILE = 16


class Vocabulary:
    """Which rows of a head there are logits of, and whose they are.

    Parameters
    ----------
    parts : tuple of slice
        Rows of the head, ascending: those whose products are made, side by side.
    targets : int32 (R,), optional
        The token of the target that each of the R logits of a row is of; None if they are the same.
    own : bool
        Whether the head has rows for these tokens alone.

    Attributes
    ----------
    parts, targets, own
    """

    def __init__(self, parts: tuple[slice, ...], targets: Ids | None = None, *, own: bool = False) -> None:
        self.parts, self.targets, self.own = parts, targets, own
        self._columns: Ids | None = None

    def __len__(self) -> int:
        return sum(part.stop - part.start for part in self.parts)

    def columns(self) -> list[slice]:
        """Where the products of each part lie among the logits."""
        ends = np.cumsum([part.stop - part.start for part in self.parts]).tolist()
        return [slice(end - (part.stop - part.start), end) for part, end in zip(self.parts, ends, strict=True)]

    def has(self, token: int) -> bool:
        """Whether one of the rows is of this token, where rows are the target's."""
        return any(part.start <= token < part.stop for part in self.parts)

    def column(self, ids: Ids) -> Ids:
        """Which of the logits are of these tokens, that can be guessed."""
        if self.targets is None:
            return ids
        if self._columns is None:
            self._columns = np.zeros(int(self.targets.max()) + 1, np.int32)
            self._columns[self.targets] = np.arange(len(self.targets))
        return self._columns[ids]

    def row(self, ids: Ids) -> Ids:
        """Which rows of the head are of these tokens, that can be guessed."""
        return self.column(ids) if self.own else ids


def vocabulary(source: Source, target: Any, n: int | None) -> Vocabulary:
    """Find out what a draft guesses from.

    Parameters
    ----------
    source : Source
    target : Model or DeviceModel
    n : int, optional
        Only the first so many tokens, and the special ones at the end. Tokens of byte-pair encodings are in the order of
        their merges, which is about that of how often they come.

    Raises
    ------
    RequestError
        If the target has fewer tokens, or `n` is no whole number.
    Unsupported
        If `n` is given for a draft with a vocabulary of its own.
    FormatError
        If the draft knows tokens that the target does not.
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


def first(target: Any, n: int | None) -> Vocabulary:
    """Take the first tokens of a target, and its special ones; all of them if it is not said how many.

    Parameters
    ----------
    target : Model or DeviceModel
    n : int, optional
        As of `vocabulary`.

    Raises
    ------
    RequestError
        If the target has fewer tokens, or `n` is no whole number.
    """
    n_vocab = target.config.n_vocab
    if n is not None and not (isinstance(n, Integral) and 1 <= n <= n_vocab):
        raise RequestError(f"draft_vocab is {n!r}, this model has 1 to {n_vocab} tokens to guess from")
    if n is None or n >= _first_special(target):
        return Vocabulary((slice(0, n_vocab),))
    parts = _first(target, n)
    return Vocabulary(parts, np.concatenate([np.arange(part.start, part.stop, dtype=np.int32) for part in parts]))


def common(target: Any) -> tuple[Vocabulary, ...]:
    """Tell which tokens do for texts of the most common languages.

    Parameters
    ----------
    target : Model or DeviceModel

    Returns
    -------
    tuple of Vocabulary
        The first two fifths of a vocabulary of many languages, and the first three, each with its special tokens; none of a
        smaller one.

    Notes
    -----
    Merges are in the order of how often they come, but not over all languages alike: of the 248,320 tokens of Qwen3.5 the
    first 95,000 are nearly all of English and code, 53,000 Chinese ones follow, then those of all others. Beyond two fifths
    lie 0.03 to 0.15 % of the tokens of code, 0.2 to 0.5 % of English, 6 to 9 % of German, 18 to 22 % of Chinese, 32 % of
    Russian; beyond three, 0.2 to 0.5 % of Chinese and nearly as much as before of the others.
    """
    return tuple(Vocabulary(_first(target, n)) for n in n_common(target.config.n_vocab))


def n_common(n_vocab: int) -> tuple[int, ...]:
    """How many of the first of so many tokens the `common` ones are, special ones apart."""
    shares = (2, 3) if n_vocab >= LARGE else ()
    return tuple(n_vocab * share // 5 // _TILE * _TILE for share in shares)


def _first(target: Any, n: int) -> tuple[slice, ...]:
    """The first `n` tokens, and the special ones."""
    parts = slice(0, n), slice(max(n, _first_special(target)), target.config.n_vocab)
    return tuple(part for part in parts if part.start < part.stop)


def _first_special(target: Any) -> int:
    """From which token on none is of ordinary text, or a few before: tiles of a GPU have 16 rows."""
    n_vocab = target.config.n_vocab
    weights = target.weights if target.device == "cpu" else target.weights.host
    types = np.asarray(weights.metadata.get("tokenizer.ggml.token_type", []))
    ordinary = np.flatnonzero(types == _NORMAL)
    return n_vocab if not len(ordinary) else (int(ordinary[-1]) + 1) // _TILE * _TILE
