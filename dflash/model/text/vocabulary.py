"""Vocabulary and settings of the tokenizer in a GGUF file, checked."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from dflash.errors import FormatError, Unsupported
from dflash.json_types import JsonMapping
from dflash.model.gguf.header import quoted
from dflash.model.text.piece_rules import PIECE_RULES, PieceRule

_log = logging.getLogger(__name__)
_INTEGERS = int, np.integer

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
CHARACTERS = {"gemma4": "merges", "llama": "scores"}
"""Tokenizers with plain text in tokens, `SPACE` for a space and ``<0x0A>`` for a byte, by the key that gives the merges."""
SPACE = "\u2581"

_NEEDED = bytes((0x09, 0x0A, 0x0D, *range(0x20, 0x7F), *range(0x80, 0xC0)))
"""Bytes that every byte-level vocabulary must have. Some have no token for control characters and unassigned planes."""
_IN_UTF8 = bytes((*range(0xC0), *range(0xC2, 0xF5)))
"""Bytes that occur in UTF-8."""


def _byte_letters() -> list[str]:
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = iter(range(0x100, 0x200))
    return [chr(byte) if byte in visible else chr(next(hidden)) for byte in range(256)]


BYTE_LETTERS = _byte_letters()
"""The character that represents each byte in the text of a normal token (GPT-2's alphabet)."""


@dataclass(frozen=True, slots=True, repr=False)
class TokenizerVocabulary:
    """Tokens, merges and special ids of a BPE of bytes, or of characters with bytes for those that have no token.

    texts: text of each id: in `BYTE_LETTERS` for normal tokens of a byte-level BPE, else plain.
    types: type of each id: `NORMAL`, `CONTROL`, `USER`, `UNUSED`, or `BYTE` for the bytes of a BPE of characters.
    pre: name of the rule that splits text into pieces, a key of `PIECE_RULES`; for a BPE of characters, which splits
        nothing, a key of `CHARACTERS`.
    space_prefix: text that begins a sequence or follows an added token gets a space in front, as SentencePiece does.
    eos, eot, eom, bos, pad: special ids, `eot` at the end of a turn, `eom` of a message that a tool must answer; None if the
        file does not name them.
    add_bos: whether text must start with `bos`.
    """

    texts: list[str]
    types: bytes
    merges: list[tuple[str, ...]]
    pre: str
    space_prefix: bool
    eos: int | None
    eot: int | None
    eom: int | None
    bos: int | None
    pad: int | None
    add_bos: bool

    @property
    def piece_rule(self) -> PieceRule | None:
        """Rule that splits text, if normal tokens are bytes, written in `BYTE_LETTERS`; None for a BPE of characters."""
        return PIECE_RULES.get(self.pre)

    @property
    def missing_bytes(self) -> list[int]:
        """Bytes of UTF-8 that have no token: text with them is encoded without them, as in Transformers and llama.cpp."""
        known = set(self.texts) if self.piece_rule else set(BYTE_LETTERS)
        return [byte for byte in _IN_UTF8 if BYTE_LETTERS[byte] not in known]

    @classmethod
    def from_gguf(cls, metadata: JsonMapping) -> TokenizerVocabulary:
        """Read and check the keys ``tokenizer.ggml.*``."""
        model = _text(metadata, "tokenizer.ggml.model")
        if model != "gpt2" and model not in CHARACTERS:
            names = " and ".join(map(repr, CHARACTERS))
            raise Unsupported(f"tokenizer.ggml.model is {quoted(model)}; dflash runs 'gpt2' (byte-level BPE), {names}")
        pre = model if model in CHARACTERS else _text(metadata, "tokenizer.ggml.pre")
        if pre not in PIECE_RULES and pre != model:
            raise Unsupported(f"tokenizer.ggml.pre is {quoted(pre)}; dflash runs {' and '.join(map(repr, PIECE_RULES))}")
        texts = _list(metadata, "tokenizer.ggml.tokens", str)
        types = _types(metadata, len(texts), bytes_too=model in CHARACTERS)
        _check_unique(texts, types)
        if model in CHARACTERS:
            _check_bytes(texts, types)
        else:
            _check_alphabet(texts, types)
        if CHARACTERS.get(model) == "scores":
            merges = scored_merges(_scores(metadata, texts, types))
        else:
            merges = [tuple(merge.split(" ")) for merge in _list(metadata, "tokenizer.ggml.merges", str)]
        bos = _token(metadata, "tokenizer.ggml.bos_token_id", len(texts))
        add_bos = _flag(metadata, "tokenizer.ggml.add_bos_token", default=_adds_bos(pre) and bos is not None)
        if add_bos and "tokenizer.ggml.bos_token_id" not in metadata:
            raise FormatError("tokenizer.ggml.add_bos_token is true, but tokenizer.ggml.bos_token_id is missing")
        vocabulary = cls(
            texts=texts,
            types=types,
            merges=merges,
            pre=pre,
            space_prefix=pre == "llama" and _flag(metadata, "tokenizer.ggml.add_space_prefix", default=True),
            eos=_token(metadata, "tokenizer.ggml.eos_token_id", len(texts)),
            eot=_token(metadata, "tokenizer.ggml.eot_token_id", len(texts)),
            eom=_token(metadata, "tokenizer.ggml.eom_token_id", len(texts)),
            bos=bos,
            pad=_token(metadata, "tokenizer.ggml.padding_token_id", len(texts)),
            add_bos=add_bos,
        )
        if vocabulary.missing_bytes:
            shown = " ".join(f"{byte:02X}" for byte in vocabulary.missing_bytes)
            _log.info("tokenizer.ggml.tokens has no tokens for the bytes %s: text is encoded without them", shown)
        return vocabulary

    def bad_merge(self) -> str | None:
        """Describe the first merge that does not join two tokens to a token; None if there is no such merge."""
        known = {text for text, kind in zip(self.texts, self.types, strict=True) if kind != UNUSED}
        in_pairs = set(map(len, self.merges)) <= {2}
        if in_pairs and known.issuperset(chain.from_iterable(self.merges)) and known.issuperset(map("".join, self.merges)):
            return None
        for index, merge in enumerate(self.merges):
            if len(merge) != 2:
                return f"tokenizer.ggml.merges[{index}] is {' '.join(merge)!r}, wanted two tokens with a space between"
            for text in (*merge, "".join(merge)):
                if text not in known:
                    return f"tokenizer.ggml.merges[{index}] is {' '.join(merge)!r}, but {text!r} is not a token"
        return None


def _require(metadata: JsonMapping, key: str) -> Any:
    if key not in metadata:
        raise FormatError(f"{key} is missing: the file has no complete tokenizer")
    return metadata[key]


def _text(metadata: JsonMapping, key: str) -> str:
    value = _require(metadata, key)
    if not isinstance(value, str):
        raise FormatError(f"{key} is of type {type(value).__name__}, wanted a string")
    return value


def _adds_bos(pre: str) -> bool:
    """Return True if text starts with `bos` where the file does not say, as in llama.cpp."""
    return PIECE_RULES[pre].adds_bos if pre in PIECE_RULES else pre == "llama"


def _flag(metadata: JsonMapping, key: str, *, default: bool = False) -> bool:
    value = metadata.get(key, default)
    if not isinstance(value, bool | np.bool_):
        raise FormatError(f"{key} is of type {type(value).__name__}, wanted true or false")
    return bool(value)


def _list(metadata: JsonMapping, key: str, kind: type | tuple[type, ...]) -> list:
    value = _require(metadata, key)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise FormatError(f"{key} is of type {type(value).__name__}, wanted an array")
    wrong = sorted(found.__name__ for found in set(map(type, value)) if not issubclass(found, kind))
    if wrong:
        wanted = "strings" if kind is str else "integers" if kind == _INTEGERS else "numbers"
        raise FormatError(f"{key} holds values of type {', '.join(wrong)}, wanted {wanted} only")
    return list(value)


def _types(metadata: JsonMapping, n_tokens: int, *, bytes_too: bool) -> bytes:
    key = "tokenizer.ggml.token_type"
    value = _list(metadata, key, _INTEGERS)
    if len(value) != n_tokens:
        raise FormatError(f"{key} has {len(value)} values, wanted {n_tokens}, one for each of tokenizer.ggml.tokens")
    known = (NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE) if bytes_too else (NORMAL, UNKNOWN, CONTROL, USER, UNUSED)
    strange = set(value).difference(known)
    if strange:
        index = next(index for index, kind in enumerate(value) if kind in strange)
        raise FormatError(f"{key}[{index}] is {value[index]}, wanted 1 to {known[-1]}")
    # `<unk>` is used as the control tokens are: never for ordinary text
    return bytes(CONTROL if kind == UNKNOWN else kind for kind in value)


def _scores(metadata: JsonMapping, texts: list[str], types: bytes) -> dict[str, float]:
    """Return the scores of the tokens of ordinary text."""
    key = "tokenizer.ggml.scores"
    scores = _list(metadata, key, (float, np.floating, *_INTEGERS))
    if len(scores) != len(texts):
        raise FormatError(f"{key} has {len(scores)} values, wanted {len(texts)}, one for each of tokenizer.ggml.tokens")
    if not np.isfinite(scores).all():
        index = int(np.argmin(np.isfinite(scores)))
        raise FormatError(f"{key}[{index}] is {scores[index]}, wanted a finite number")
    return {text: score for text, score, kind in zip(texts, scores, types, strict=True) if kind == NORMAL}


def _check_unique(texts: list[str], types: bytes) -> None:
    """Check that a text has one id; padding rows may have the text of others."""
    first: dict[str, int] = {}
    for index, (text, kind) in enumerate(zip(texts, types, strict=True)):
        if kind != UNUSED and first.setdefault(text, index) != index:
            raise FormatError(f"tokenizer.ggml.tokens[{index}] is {text!r} again, after id {first[text]}")


def _check_bytes(texts: list[str], types: bytes) -> None:
    """Check that a BPE of characters has a token for every byte, so that it can encode every text."""
    own = [text for text, kind in zip(texts, types, strict=True) if kind == BYTE]
    wanted = [f"<0x{byte:02X}>" for byte in range(256)]
    missing, other = set(wanted).difference(own), set(own).difference(wanted)
    if missing:
        raise FormatError(f"tokenizer.ggml.tokens has no byte token {min(missing)}, so not every text has ids")
    if other:
        raise FormatError(f"tokenizer.ggml.tokens has the byte token {min(other)!r}, wanted <0x00> to <0xFF>")


def _check_alphabet(texts: list[str], types: bytes) -> None:
    """Check that every text can be encoded and every token decoded."""
    normal = [text for text, kind in zip(texts, types, strict=True) if kind == NORMAL]
    strange = set("".join(normal)) - set(BYTE_LETTERS)
    if strange:
        text = next(text for text in normal if strange & set(text))
        raise FormatError(f"tokenizer.ggml.tokens[{texts.index(text)}] is {text!r}, which is not in GPT-2's alphabet")
    known = set(normal)
    byte = next((byte for byte in _NEEDED if BYTE_LETTERS[byte] not in known), None)
    if byte is not None:
        raise FormatError(f"tokenizer.ggml.tokens has no token for the byte 0x{byte:02x}, so not every text has ids")


def _token(metadata: JsonMapping, key: str, n_tokens: int) -> int | None:
    """Return a special id; None if there is none, or if it is out of range, as some converters write for a missing token."""
    if key not in metadata:
        return None
    token = metadata[key]
    if not isinstance(token, int | np.integer):
        shown = quoted(token) if isinstance(token, str) else f"{token!r:.80}"
        raise FormatError(f"{key} is {shown}, wanted an id from 0 to {n_tokens - 1}")
    if 0 <= token < n_tokens:
        return int(token)
    _log.warning("%s is %d, ids are 0 to %d: the file is used without this special token", key, token, n_tokens - 1)
    return None


def scored_merges(scores: Mapping[str, float]) -> list[tuple[str, ...]]:
    """Return the merges that lead to tokens, those to the token of the best score first.

    SentencePiece joins the two neighbours whose text together is the token of the best score, the leftmost of several. Each
    way to split a token into two others is a merge here, so that a BPE with ranks does the same.

    Ways to split one token have ranks of their own, the longest left part first, as in Transformers.
    """
    joined = sorted((text for text in scores if len(text) > 1), key=scores.__getitem__, reverse=True)
    return [pair for text in joined for pair in _splits(text, scores)]


def _splits(text: str, known: Mapping[str, float]) -> Iterable[tuple[str, str]]:
    for n in range(len(text) - 1, 0, -1):
        left, right = text[:n], text[n:]
        if left in known and right in known:
            yield left, right
