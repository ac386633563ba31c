"""Grammars of a tokenizer's text, matched by the library `llguidance`."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from functools import partial
from time import thread_time
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from dflash.decode.grammar.matcher import Words
from dflash.errors import RequestError
from dflash.generation.grammar import compilation
from dflash.generation.grammar.bounds.grammars import check_grammar
from dflash.generation.grammar.checking.checker import GrammarChecker
from dflash.generation.grammar.compilation import compile_source, guidance, guidance_tokenizer, reason_of, with_stack
from dflash.generation.grammar.gbnf import lark_of
from dflash.generation.grammar.limits import COMPILE_STACK, MAX_GENERATED_PARTS, MAX_GRAMMAR_PARTS
from dflash.generation.grammar.mask_budget import MaskBudget, SharedMaskBudget
from dflash.model.text.tokenizer import Tokenizer

_SPLIT = "\ue000"
_known: WeakKeyDictionary[Tokenizer, GuidanceVocabulary] = WeakKeyDictionary()
_lock = threading.Lock()


class GuidanceVocabulary:
    """The tokens of a tokenizer in the form that llguidance needs. Made once for each tokenizer.

    Added tokens (``<tool_call>``, ``<|im_end|>``) are legal only where a grammar names them, never as a part of text.

    checker: compiles each grammar in a process of its own first; None without `isolate`.

    Made at its first use, which takes 0.1 s for 16,384 tokens and 1.5 s for 248,320.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._texts = [tokenizer.token_bytes(token) for token in range(tokenizer.n_vocab)]
        self._added = [token for token in range(tokenizer.n_tokens) if tokenizer.is_added(token)]
        self.ends, self.n_words = frozenset(tokenizer.eos_ids), -(-tokenizer.n_vocab // 32)
        self.checker: GrammarChecker | None = None
        self.mask_budget = SharedMaskBudget()
        self._encoder, self._making = _Encoder(tokenizer, self._texts, self._added), threading.Lock()
        self._inner: Any = None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> GuidanceVocabulary:
        """Return the vocabulary of a tokenizer, made at first use."""
        with _lock:
            if tokenizer not in _known:
                _known[tokenizer] = cls(tokenizer)
            return _known[tokenizer]

    @property
    def inner(self) -> Any:
        """The vocabulary of llguidance."""
        with self._making:
            if self._inner is None:
                self._inner = guidance_tokenizer(self._encoder, self._encoder.ends)
            return self._inner

    def isolate(self) -> GrammarChecker | None:
        """Start and return `checker`, which the caller closes.

        Do nothing without a recent llguidance, where every grammar is refused, and on systems without `fork`, such as
        Windows, where grammars are compiled in this process only.
        """
        if compilation.has_guidance() and hasattr(os, "fork"):
            self.checker = GrammarChecker(self._texts, self._added, self._encoder.ends)
        return self.checker


class GuidanceGrammar:
    """A grammar that llguidance matches. is_generated: the grammar was made from schemas, whose size is bounded."""

    def __init__(
        self, vocabulary: GuidanceVocabulary, source: str, name: str, *, gbnf: bool = False, is_generated: bool = False
    ) -> None:
        self.vocabulary, self._budget = vocabulary, MaskBudget(vocabulary.mask_budget)
        guidance()
        try:
            if not gbnf:
                check_grammar(source, MAX_GENERATED_PARTS if is_generated else MAX_GRAMMAR_PARTS)
            if vocabulary.checker is not None:
                source = vocabulary.checker.check(source, gbnf=gbnf)
            elif gbnf:
                source = lark_of(source)
            if gbnf:
                check_grammar(source)
            self._first = with_stack(COMPILE_STACK, partial(compile_source, vocabulary.inner, source))
        except RequestError as error:
            raise RequestError(f"{name}: {error}") from None

    @property
    def mask_load(self) -> float:
        """See `Grammar`."""
        return self.vocabulary.mask_budget.load

    def start(self) -> GuidanceMatcher:
        """Return the position before the first token."""
        return GuidanceMatcher(self._first.deep_copy(), self.vocabulary, self._budget)


class GuidanceMatcher:
    """Position in a `GuidanceGrammar`."""

    free, binds = False, True

    def __init__(self, inner: Any, vocabulary: GuidanceVocabulary, budget: MaskBudget) -> None:
        self._inner, self._ends, self._ended = inner, vocabulary.ends, False
        self._budget, self._n_words = budget, vocabulary.n_words

    @property
    def is_accepting(self) -> bool:
        """See `Matcher`."""
        return not self._ended and self._inner.is_accepting()

    @property
    def is_complete(self) -> bool:
        """See `Matcher`."""
        return not self._ended and self._inner.is_stopped() and self._inner.is_accepting()

    @property
    def mask_seconds(self) -> float:
        """See `Matcher`."""
        return self._budget.mean

    def mask(self) -> Words:
        """See `Matcher`."""
        if self._ended:
            return np.zeros(self._n_words, np.uint32)
        began = thread_time()
        self._budget.charge(0.0)
        words = np.frombuffer(self._inner.compute_bitmask(), np.uint32)[: self._n_words]
        self._budget.charge_mask(thread_time() - began)
        self._check()
        return words

    def advance(self, token: int) -> bool:
        """See `Matcher`. End tokens are not passed to llguidance, which could not undo them."""
        if self._ended:
            return False
        if token in self._ends:
            self._ended = self._inner.is_accepting()
            return self._ended
        began = thread_time()
        moved = self._inner.try_consume_tokens([token])
        self._budget.charge(thread_time() - began)
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
        began = thread_time()
        tokens = [] if self._ended else self._inner.compute_ff_tokens()
        self._budget.charge(thread_time() - began)
        self._check()
        return tokens

    def _check(self) -> None:
        if self._inner.is_error():
            raise RequestError(f"grammar: can't be followed further: {reason_of(self._inner.get_error())}")


class _Encoder:
    """Converts certain text of a grammar to tokens; llguidance calls it."""

    def __init__(self, tokenizer: Tokenizer, texts: list[bytes], added: list[int]) -> None:
        self.ends, self.eos_token_id, self.bos_token_id = tokenizer.eos_ids, tokenizer.eos_ids[0], None
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
    return guidance().LLMatcher.grammar_from_regex(regex)
