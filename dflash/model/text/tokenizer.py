"""Convert text to token ids and back."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from dflash.errors import ContextOverflow, FormatError, RequestError
from dflash.json_types import JsonMapping
from dflash.model.text.spelled_tokens import MARK, TURN_TEXTS, SpelledTokens
from dflash.model.text.vocabulary import (
    BYTE,
    BYTE_LETTERS,
    CONTROL,
    NORMAL,
    SPACE,
    UNUSED,
    USER,
    TokenizerVocabulary,
)

if TYPE_CHECKING:
    import tokenizers

_LETTER_TO_BYTE = {ord(letter): byte for byte, letter in enumerate(BYTE_LETTERS)}
_BYTE_TO_LETTER = dict(enumerate(BYTE_LETTERS))
_END_TEXTS = (
    *("<|endoftext|>", "<|im_end|>", "<turn|>", "<|tool_response>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "</s>"),
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
"""Tokens that end a completion in the models that have them, as in llama.cpp."""

_UNCERTAIN_PIECES = 16
"""Last pieces of a prefix that may differ from those of the whole text: a spelled-out control token has about ten pieces."""


class Tokenizer:
    """BPE of a GGUF file, of bytes or of characters, run by Hugging Face `tokenizers`.

    n_tokens: smaller ids may be tokens; rows from here on are padding.
    eos_ids: ids that end a completion: `eos` first, the ends of a turn and of a message that the file names, then others
        such as ``<|im_end|>`` if they exist.
    space_prefix: whether `encode` puts a space in front of the text, as SentencePiece does, and `decode` removes it.
    normalizer: Unicode normalization form applied to text between added tokens, or ``"none"``.
    """

    def __init__(self, vocabulary: TokenizerVocabulary) -> None:
        self._texts, self._types = vocabulary.texts, vocabulary.types
        self._full, self._untrusted, self._marked = _build(vocabulary)
        rule = vocabulary.piece_rule
        self.pre, self._byte_level = vocabulary.pre, rule is not None
        self.normalizer = "NFC" if rule is not None and rule.nfc else "none"
        self.space_prefix = vocabulary.space_prefix
        self.n_vocab = len(self._texts)
        self.n_tokens = len(self._types.rstrip(bytes([UNUSED])))
        self.eos, self.bos, self.pad = vocabulary.eos, vocabulary.bos, vocabulary.pad
        self.add_bos = vocabulary.add_bos
        named = (self.eos, vocabulary.eot, vocabulary.eom)
        known = (token for token in map(self.id_of, _END_TEXTS) if token is not None and self.is_added(token))
        self.eos_ids = tuple(dict.fromkeys([*(token for token in named if token is not None), *known]))
        self._extra_space = self._after_added() if self.space_prefix else None
        if not self.eos_ids:
            raise FormatError(f"tokenizer.ggml.eos_token_id is missing and no token is {' or '.join(_END_TEXTS)}")

    def __repr__(self) -> str:
        return f"Tokenizer({self.pre}, {self.normalizer}, {self.n_tokens} tokens in {self.n_vocab} rows)"

    @classmethod
    def from_gguf(cls, metadata: JsonMapping) -> Tokenizer:
        """Build the tokenizer that a GGUF file describes; see `TokenizerVocabulary.from_gguf` for parameters and errors.

        Takes about a second for Qwen3.5's 248,320 tokens and 247,587 merges.
        """
        return cls(TokenizerVocabulary.from_gguf(metadata))

    def encode(self, text: str, *, special: bool = True, marked: bool = False, max_tokens: int | None = None) -> list[int]:
        """Convert text to token ids.

        special: whether a control token spelled out in the text (``<|im_end|>``) becomes that token. Use False for untrusted
            text and for parts of a text; no `bos` and no space is added then. Added tokens that are not control tokens
            (``<think>``) are recognized in both cases.
        marked: whether the text comes from a chat template: control tokens with a mark of `SpelledTokens` are ordinary text,
            and marks are left out.
        max_tokens: most tokens that the text may have. A much longer text is refused without encoding all of it.
        """
        marked = marked and MARK in text
        if marked and not special:
            text = text.replace(MARK, "")
        inner = self._inner(special=special, marked=marked)
        if max_tokens is not None:
            self._check_length(text, max_tokens, inner)
            ids = self._encoded([text], inner, special=special)[0]
            if len(ids) > max_tokens:
                message = f"the text has {len(ids)} tokens, at most {max_tokens} are allowed"
                raise ContextOverflow(message, n_tokens=len(ids), context=max_tokens)
            return ids
        return self._encoded([text], inner, special=special)[0]

    def _inner(self, *, special: bool, marked: bool = False) -> tokenizers.Tokenizer:
        return self._untrusted if not special else self._marked if marked else self._full

    def _check_length(self, text: str, max_tokens: int, inner: tokenizers.Tokenizer) -> None:
        """Raise a ContextOverflow if a prefix of the text already has more tokens than allowed.

        Costs at most as much as encoding the whole text. BPE merges inside pieces of text, so that a prefix has the same
        tokens as in the whole text, except for the pieces next to its end.
        """
        n = 4 * max(max_tokens, 1024)
        while n < len(text):
            try:
                pieces = cast("list[int]", inner.encode(text[:n], add_special_tokens=False).word_ids)
            except TypeError:
                _check_unicode(text)
                raise
            certain = bisect_left(pieces, pieces[-1] - _UNCERTAIN_PIECES)
            if certain > max_tokens:
                message = f"the text has more than {certain} tokens, at most {max_tokens} are allowed"
                raise ContextOverflow(message, n_tokens=certain + 1, context=max_tokens)
            n *= 2

    def encode_batch(self, texts: Sequence[str], *, special: bool = True) -> list[list[int]]:
        """Convert several texts to ids in parallel; see `encode`."""
        return self._encoded(texts, self._inner(special=special), special=special)

    def _encoded(self, texts: Sequence[str], inner: tokenizers.Tokenizer, *, special: bool) -> list[list[int]]:
        if special and self._extra_space is not None:
            texts = [self._extra_space.sub(r"\1", text) for text in texts]
        try:
            encodings = inner.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:
            for text in texts:
                _check_unicode(text)
            raise
        ids = [encoding.ids for encoding in encodings]
        if self.add_bos and self.bos is not None and special:
            return [row if row[:1] == [self.bos] else [self.bos, *row] for row in ids]
        return ids

    def without_added_bos(self, ids: list[int], text: str) -> list[int]:
        """Drop the beginning-of-sequence token that `encode` has added to a text; keep one that the text spells out."""
        if not self.add_bos or self.bos is None or ids[:1] != [self.bos]:
            return ids
        return ids if text.startswith(self.token_bytes(self.bos).decode()) else ids[1:]

    def decode(self, ids: Iterable[int], *, skip_special: bool = False, continues: bool = False) -> str:
        """Convert ids to text: their joined bytes, with U+FFFD where they are not UTF-8.

        The space that `encode` has put in front of the text is left out.

        ids: ids below `n_vocab`; padding rows have no bytes.
        """
        if skip_special:
            ids = (token for token in ids if not self.is_special(token))
        parts = [self.token_bytes(token) for token in ids]
        first = int(self.bos is not None and parts[:1] == [self.token_bytes(self.bos)])
        if self.space_prefix and not continues and parts[first:]:
            parts[first] = parts[first].removeprefix(b" ")
        return b"".join(parts).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token, which may be part of a character."""
        kind = self._kind(token)
        if kind == NORMAL and self._byte_level:
            return self._texts[token].translate(_LETTER_TO_BYTE).encode("latin-1")
        if kind == NORMAL:
            return self._texts[token].replace(SPACE, " ").encode()
        if kind == BYTE:
            return bytes([int(self._texts[token][3:5], 16)])
        return b"" if kind == UNUSED else self._texts[token].encode()

    def is_special(self, token: int) -> bool:
        """Return True if a token is a control token."""
        return self._kind(token) == CONTROL

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Control tokens, end tokens among them."""
        return frozenset(token for token, kind in enumerate(self._types) if kind == CONTROL)

    def is_added(self, token: int) -> bool:
        """Return True if a token is no piece of ordinary text: a control token, or one as ``<think>``."""
        return self._kind(token) in (CONTROL, USER)

    def id_of(self, text: str) -> int | None:
        """Return the id of the token with exactly this text, added tokens first; None if there is none."""
        try:
            bytes_of_it = text.encode()
        except UnicodeEncodeError:
            return None
        letters = bytes_of_it.decode("latin-1").translate(_BYTE_TO_LETTER) if self._byte_level else text.replace(" ", SPACE)
        for spelling, kinds in ((text, (CONTROL, USER)), (letters, (NORMAL,))):
            token = self._full.token_to_id(spelling)
            if token is not None and self._types[token] in kinds:
                return token
        return None

    def spelled_tokens(self) -> SpelledTokens:
        """Return the control tokens that are text where messages spell them out."""
        control = [text for token, text in enumerate(self._texts) if self.is_special(token)]
        turns = {*TURN_TEXTS, *(self._texts[token] for token in (*self.eos_ids, self.bos) if token is not None)}
        return SpelledTokens(control, turns.intersection(control))

    def special_texts(self) -> dict[str, str]:
        """Return the texts of special tokens by the names that chat templates use, such as ``eos_token``."""
        ids = {"bos_token": self.bos, "eos_token": self.eos, "pad_token": self.pad}
        return {name: self._texts[token] for name, token in ids.items() if token is not None}

    def _after_added(self) -> re.Pattern[str]:
        """Return an expression for an added token and the space after it, which stands for the one that is put there.

        Templates of Mistral and Llama 2 write this space or not. The models know a single one.
        """
        texts = [text for token, text in enumerate(self._texts) if self.is_added(token)]
        each = "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)"
        return re.compile(rf"({each}) (?!{each}|\Z)")

    def _kind(self, token: int) -> int:
        if not 0 <= token < self.n_vocab:
            raise RequestError(f"token id {token} is not in the vocabulary: wanted 0 to {self.n_vocab - 1}")
        return self._types[token]


def _build(vocabulary: TokenizerVocabulary) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer, tokenizers.Tokenizer]:
    """Make a tokenizer with all added tokens, one without control tokens, and one that drops marks; they share the BPE."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

    texts, types, rule = vocabulary.texts, vocabulary.types, vocabulary.piece_rule
    ids = {text: index for index, text in enumerate(texts) if types[index] != UNUSED}
    problem = vocabulary.bad_merge()
    if problem:
        # checked first: the library panics at some merges, which raises a BaseException and prints a Rust message
        raise FormatError(problem)
    try:
        merges = cast("list[tuple[str, str]]", vocabulary.merges)
        whole = rule is not None and rule.whole_tokens
        bpe = models.BPE(vocab=ids, merges=merges, byte_fallback=rule is None, ignore_merges=whole)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise FormatError(f"tokenizer.ggml.merges can't be used: {error!s:.200}") from error
    added = [
        AddedToken(texts[index], special=kind == CONTROL, normalized=False)
        for index, kind in enumerate(types)
        if kind in (CONTROL, USER)
    ]
    full, untrusted, marked = (Tokenizer(bpe) for _ in range(3))
    full.add_tokens(added)
    marked.add_tokens(added)
    untrusted.add_tokens([token for token in added if not token.special])
    for tokenizer in (full, untrusted, marked):
        steps: list[Any] = [normalizers.Replace(MARK, "")] if tokenizer is marked else []
        if vocabulary.space_prefix and tokenizer is not untrusted:
            steps.append(normalizers.Prepend(SPACE))
        if rule is None:
            steps.append(normalizers.Replace(" ", SPACE))
        else:
            pieces = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
            letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*pieces, letters])
            steps += [normalizers.NFC()] * rule.nfc
        if steps:
            tokenizer.normalizer = normalizers.Sequence(steps)
    return full, untrusted, marked


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise RequestError(
            f"the text holds half a surrogate pair, U+{code:04X}, at character {error.start}: wanted valid Unicode"
        ) from error
