"""Grammars of a tokenizer's text, matched by the library `llguidance`."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from functools import cached_property
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from dflash.decode.grammar.matcher import Words
from dflash.errors import DFlashError, RequestError
from dflash.generation.grammar.limits import COMPILE_FUEL, MAX_STATES, MAX_SYMBOLS, STEP_FUEL, STEP_ITEMS
from dflash.model.text.tokenizer import Tokenizer

_SPLIT = "\ue000"
_MAX_REASON = 200
_known: WeakKeyDictionary[Tokenizer, GuidanceVocabulary] = WeakKeyDictionary()
_lock = threading.Lock()


class GuidanceVocabulary:
    """The tokens of a tokenizer in the form that llguidance needs. Made once for each tokenizer.

    Added tokens (``<tool_call>``, ``<|im_end|>``) are legal only where a grammar names them, never as a part of text.

    Attributes
    ----------
    ends : frozenset of int
        Tokens that end an output.
    n_words : int
        Words of a mask.

    Raises
    ------
    RequestError
        If llguidance is not installed.

    Notes
    -----
    Takes 0.1 s for 16,384 tokens and 1.5 s for 248,320.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        library = _library()
        texts = [tokenizer.token_bytes(token) for token in range(tokenizer.n_vocab)]
        added = [token for token in range(tokenizer.n_tokens) if tokenizer.is_added(token)]
        self.ends = frozenset(tokenizer.eos_ids)
        self._texts, self.n_words = texts, -(-len(texts) // 32)
        self.inner = library.LLTokenizer(
            library.TokenizerWrapper(_Encoder(tokenizer, texts, added)),
            n_vocab=tokenizer.n_vocab,
            eos_token=list(tokenizer.eos_ids),
        )

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> GuidanceVocabulary:
        """Return the vocabulary of a tokenizer, made at first use."""
        with _lock:
            if tokenizer not in _known:
                _known[tokenizer] = cls(tokenizer)
            return _known[tokenizer]

    @cached_property
    def joined(self) -> dict[int, int]:
        """Lengths in bytes of the tokens that have text after ``>`` and a line break."""
        joins = re.compile(rb".*>\n.", re.DOTALL)
        return {token: len(text) for token, text in enumerate(self._texts) if joins.match(text)}


class GuidanceGrammar:
    """A grammar that llguidance matches.

    Parameters
    ----------
    source : str
        Grammar in Lark or in llguidance's JSON form.
    name : str
        Field of the request, for errors.
    headers : bool
        Keep the line break after ``>``, where it is certain, apart from the text after it. So no token holds the end of a
        parameter's header together with the start of its value.

    Raises
    ------
    RequestError
        If the grammar is not valid, too large, or no output matches it.
    """

    def __init__(self, vocabulary: GuidanceVocabulary, source: str, name: str, *, headers: bool = False) -> None:
        library = _library()
        self.vocabulary, self.headers = vocabulary, headers
        limits = library.LLParserLimits(
            initial_lexer_fuel=COMPILE_FUEL,
            max_grammar_size=MAX_SYMBOLS,
            max_lexer_states=MAX_STATES,
            step_lexer_fuel=STEP_FUEL,
            step_max_items=STEP_ITEMS,
            verbose_errors=False,
        )
        self._first = library.LLMatcher(vocabulary.inner, source, log_level=0, limits=limits)
        if not self._first.is_error():
            self._first.compute_bitmask()  # lets every output share the first states
        if self._first.is_error():
            raise RequestError(f"{name}: {_reason(self._first.get_error())}")

    def start(self) -> GuidanceMatcher:
        """Return the position before the first token."""
        return GuidanceMatcher(self._first.deep_copy(), self.vocabulary, headers=self.headers)


class GuidanceMatcher:
    """Position in a `GuidanceGrammar`."""

    free = False

    def __init__(self, inner: Any, vocabulary: GuidanceVocabulary, *, headers: bool) -> None:
        self._inner, self._ends, self._ended = inner, vocabulary.ends, False
        self._joined, self._n_words = vocabulary.joined if headers else {}, vocabulary.n_words

    @property
    def is_accepting(self) -> bool:
        """See `Matcher`."""
        return not self._ended and self._inner.is_accepting()

    @property
    def is_complete(self) -> bool:
        """See `Matcher`."""
        return not self._ended and self._inner.is_stopped() and self._inner.is_accepting()

    def mask(self) -> Words:
        """See `Matcher`."""
        if self._ended:
            return np.zeros(self._n_words, np.uint32)
        words = np.frombuffer(self._inner.compute_bitmask(), np.uint32)[: self._n_words]
        self._check()
        return self._without_joined(words) if self._joined else words

    def advance(self, token: int) -> bool:
        """See `Matcher`. End tokens are not passed to llguidance, which could not undo them."""
        if self._ended:
            return False
        if token in self._ends:
            self._ended = self._inner.is_accepting()
            return self._ended
        if token in self._joined and self._joined[token] > (self._header() or self._joined[token]):
            return False
        moved = self._inner.try_consume_tokens([token])
        self._check()
        return moved == 1

    def rollback(self, n: int) -> None:
        """See `Matcher`."""
        if n and self._ended:
            self._ended = False
            n -= 1
        if n:
            self._inner.rollback(n)
            self._check()

    def forced(self) -> Sequence[int]:
        """See `Matcher`."""
        tokens = [] if self._ended else self._inner.compute_ff_tokens()
        self._check()
        return tokens

    def _header(self) -> int:
        """Return the number of certain bytes up to the line break of a header; 0 if they do not end in one."""
        certain = self._inner.compute_ff_bytes()
        return len(certain) if certain.endswith(b">\n") else 0

    def _without_joined(self, words: Words) -> Words:
        n = self._header()
        if not n:
            return words
        words = words.copy()
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")
        for token in np.flatnonzero(bits).tolist():
            if self._joined.get(token, 0) > n:
                words[token // 32] &= ~np.uint32(1 << token % 32)
        return words

    def _check(self) -> None:
        if self._inner.is_error():
            raise DFlashError(f"grammar: can't be followed further: {_reason(self._inner.get_error())}")


class _Encoder:
    """Converts certain text of a grammar to tokens; llguidance calls it."""

    def __init__(self, tokenizer: Tokenizer, texts: list[bytes], added: list[int]) -> None:
        self.eos_token_id, self.bos_token_id = tokenizer.eos_ids[0], None
        self.tokens, self.special_token_ids = texts, added
        self._tokenizer = ref(tokenizer)  # the cache of vocabularies must not keep its keys alive
        self._of_byte = {text: token for token, text in enumerate(texts) if len(text) == 1}
        names = sorted((texts[token].decode() for token in added), key=len, reverse=True)
        self._added = re.compile("|".join(map(re.escape, names)) or "(?!)")

    def __call__(self, text: str) -> list[int]:
        """Return the ids of a text in which added tokens are spelled out."""
        tokenizer = self._tokenizer()
        if not isinstance(text, str) or tokenizer is None:
            raise TypeError("must be a string for a tokenizer in use")
        parts = self._added.sub(lambda found: found[0][0] + _SPLIT + found[0][1:], text).split(_SPLIT)
        ids = [token for part in tokenizer.encode_batch(parts, special=False) for token in part]
        if b"".join(map(self.tokens.__getitem__, ids)) == text.encode():
            return ids
        # the tokenizer's normalization changes the text, which must stay as it is
        return [self._of_byte[bytes([byte])] for byte in text.encode()]


def regex_source(regex: str) -> str:
    """Return the grammar of all texts that a regular expression matches as a whole."""
    return _library().LLMatcher.grammar_from_regex(regex)


def _library() -> ModuleType:
    try:
        import llguidance
    except ImportError as error:
        raise RequestError(
            "response_format, regex, lark and tool_choice need llguidance: pip install 'dflash[grammar]'"
        ) from error
    return llguidance


def _reason(error: str) -> str:
    """Return the message of llguidance on one line."""
    if error.startswith("NoExtension"):
        return "no output matches the grammar"
    line = " ".join(re.split(r"\n\s+\d+ \| ", error)[0].replace("<non-verbose/>", "").split()) or "is not valid"
    return line if len(line) <= _MAX_REASON else line[: _MAX_REASON - 3] + "..."
