"""Text to token ids and back."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dflash.errors import ContextOverflow, FormatError, RequestError
from dflash.model.text.vocabulary import BYTE_LETTERS, CONTROL, NORMAL, PATTERNS, UNUSED, USER, Vocabulary

if TYPE_CHECKING:
    import tokenizers

_LETTER_TO_BYTE = {ord(letter): byte for byte, letter in enumerate(BYTE_LETTERS)}
_BYTE_TO_LETTER = dict(enumerate(BYTE_LETTERS))
_END_TEXTS = ("<|endoftext|>", "<|im_end|>")

_UNCERTAIN_PIECES = 16
"""Last pieces of a beginning that may be cut otherwise in the whole text: a spelled-out control token has about ten."""


class Tokenizer:
    """Byte-level BPE of a GGUF file, run by Hugging Face `tokenizers`.

    Attributes
    ----------
    n_vocab : int
        Rows of the embedding, with those that only fill it up.
    n_tokens : int
        Ids below it may be tokens; the rows from here on are fill.
    eos, bos, pad : int or None
        As the file has them.
    eos_ids : tuple of int
        Ids that end a text: `eos` first, then ``<|endoftext|>`` and ``<|im_end|>`` where they exist.
    add_bos : bool
        Whether `encode` starts with `bos`.
    pre : str
        Name of the pattern that cuts text into pieces.
    normalizer : str
        Unicode form that text is brought to between added tokens.
    """

    normalizer = "NFC"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._texts, self._types = vocabulary.texts, vocabulary.types
        self._full, self._untrusted = _build(vocabulary)
        self.pre = vocabulary.pre
        self.n_vocab = len(self._texts)
        self.n_tokens = len(self._types.rstrip(bytes([UNUSED])))
        self.eos, self.bos, self.pad = vocabulary.eos, vocabulary.bos, vocabulary.pad
        self.add_bos = vocabulary.add_bos
        ends = (self.eos, *map(self.id_of, _END_TEXTS))
        self.eos_ids = tuple(dict.fromkeys(token for token in ends if token is not None))
        if not self.eos_ids:
            raise FormatError(f"tokenizer.ggml.eos_token_id is missing and no token is {' or '.join(_END_TEXTS)}")

    def __repr__(self) -> str:
        return f"Tokenizer({self.pre}, {self.normalizer}, {self.n_tokens} tokens in {self.n_vocab} rows)"

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Build the tokenizer that a GGUF file describes.

        Parameters
        ----------
        metadata : mapping of str
            Keys and values of the file; arrays may be lists or NumPy arrays.

        Raises
        ------
        Unsupported
            If it is not a byte-level BPE, or cuts text by a pattern that dflash does not know.
        FormatError
            If a key is missing or the keys contradict each other.

        Notes
        -----
        Takes about a second for Qwen3.5's 248,320 tokens and 247,587 merges.
        """
        return cls(Vocabulary.from_gguf(metadata))

    def encode(self, text: str, *, special: bool = True, max_tokens: int | None = None) -> list[int]:
        """Turn a text into ids.

        Parameters
        ----------
        text : str
            Any text.
        special : bool
            Whether control tokens (``<|im_end|>``) that are spelled out in the text become that token. False
            for text that nobody vouches for, and for pieces of a text: then no `bos` is added either. Tokens
            that are added but not control (``<think>``) are recognised in both cases.
        max_tokens : int, optional
            Most tokens that the text may have. A text far beyond is refused after a part of it was read.

        Raises
        ------
        RequestError
            If the text holds half of a surrogate pair, which no UTF-8 can.
        ContextOverflow
            If there are more than `max_tokens`.
        """
        if max_tokens is not None:
            self._check_length(text, max_tokens, special=special)
            ids = self.encode_batch([text], special=special)[0]
            if len(ids) > max_tokens:
                raise ContextOverflow(f"the text has {len(ids)} tokens, at most {max_tokens} are allowed")
            return ids
        return self.encode_batch([text], special=special)[0]

    def _check_length(self, text: str, max_tokens: int, *, special: bool) -> None:
        """Raise a ContextOverflow if the beginning of a text has more tokens than allowed already.

        Costs at most as much as the whole text. Text is cut into pieces before merges, so a beginning has the tokens that it
        has in the text, but for the pieces next to its end.
        """
        inner = self._full if special else self._untrusted
        n = 4 * max(max_tokens, 1024)
        while n < len(text):
            try:
                pieces = inner.encode(text[:n], add_special_tokens=False).word_ids
            except TypeError:
                _check_unicode(text)
                raise
            certain = bisect_left(pieces, pieces[-1] - _UNCERTAIN_PIECES)
            if certain > max_tokens:
                raise ContextOverflow(f"the text has more than {certain} tokens, at most {max_tokens} are allowed")
            n *= 2

    def encode_batch(self, texts: Sequence[str], *, special: bool = True) -> list[list[int]]:
        """Turn many texts into ids, in parallel; otherwise `encode` of each."""
        inner = self._full if special else self._untrusted
        try:
            encodings = inner.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:
            for text in texts:
                _check_unicode(text)
            raise
        ids = [encoding.ids for encoding in encodings]
        if self.add_bos and special:
            return [row if row[:1] == [self.bos] else [self.bos, *row] for row in ids]
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Turn ids into text: their bytes, joined, with U+FFFD where those are not UTF-8.

        Parameters
        ----------
        ids : iterable of int
            Ids below `n_vocab`; rows of fill have no bytes.
        skip_special : bool
            Whether control tokens are left out.

        Raises
        ------
        RequestError
            If an id is not in the vocabulary; the message names it.
        """
        if skip_special:
            ids = (token for token in ids if not self.is_special(token))
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """Bytes that a token adds to the text, which may be part of a character."""
        kind = self._kind(token)
        if kind == NORMAL:
            return self._texts[token].translate(_LETTER_TO_BYTE).encode("latin-1")
        return b"" if kind == UNUSED else self._texts[token].encode()

    def is_special(self, token: int) -> bool:
        """Whether a token is a control token, one that is no part of the text."""
        return self._kind(token) == CONTROL

    def id_of(self, text: str) -> int | None:
        """Id of the token that reads exactly so, added tokens first; None if there is none."""
        try:
            letters = text.encode().decode("latin-1").translate(_BYTE_TO_LETTER)
        except UnicodeEncodeError:
            return None
        for spelling, kinds in ((text, (CONTROL, USER)), (letters, (NORMAL,))):
            token = self._full.token_to_id(spelling)
            if token is not None and self._types[token] in kinds:
                return token
        return None

    def special_texts(self) -> dict[str, str]:
        """Texts of the special ids under the names that chat templates know: ``eos_token`` and so on."""
        ids = {"bos_token": self.bos, "eos_token": self.eos, "pad_token": self.pad}
        return {name: self._texts[token] for name, token in ids.items() if token is not None}

    def _kind(self, token: int) -> int:
        if not 0 <= token < self.n_vocab:
            raise RequestError(f"token id {token} is not in the vocabulary: wanted 0 to {self.n_vocab - 1}")
        return self._types[token]


def _build(vocabulary: Vocabulary) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
    """Make the tokenizer that knows all added tokens and the one that ignores control tokens; they share the BPE."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

    texts, types = vocabulary.texts, vocabulary.types
    ids = {text: index for index, text in enumerate(texts) if types[index] != UNUSED}
    problem = vocabulary.bad_merge()
    if problem:
        # found beforehand: the library panics at some merges, which is a BaseException and prints a Rust message
        raise FormatError(problem)
    try:
        bpe = models.BPE(vocab=ids, merges=vocabulary.merges)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise FormatError(f"tokenizer.ggml.merges can't be used: {error!s:.200}") from error
    pieces = pre_tokenizers.Split(Regex(PATTERNS[vocabulary.pre]), "isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    added = [
        AddedToken(texts[index], special=kind == CONTROL, normalized=False)
        for index, kind in enumerate(types)
        if kind in (CONTROL, USER)
    ]
    full, untrusted = Tokenizer(bpe), Tokenizer(bpe)
    full.add_tokens(added)
    untrusted.add_tokens([token for token in added if not token.special])
    for tokenizer in (full, untrusted):
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, letters])
    return full, untrusted


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise RequestError(
            f"the text holds half a surrogate pair, U+{code:04X}, at character {error.start}: wanted valid Unicode"
        ) from error
