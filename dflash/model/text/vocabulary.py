"""Vocabulary and settings of the tokenizer in a GGUF file, checked."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from dflash.errors import FormatError, Unsupported
from dflash.model.gguf.header import quoted

_log = logging.getLogger(__name__)

NORMAL, CONTROL, USER, UNUSED, BYTE = 1, 3, 4, 5, 6
SPACED = "gemma4"
"""Name of the tokenizer whose tokens are plain text, with `SPACE` for a space and a token ``<0x0A>`` for each byte."""
SPACE = "\u2581"

_LETTERS = r"[^\r\n\p{L}\p{N}]?"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "qwen2": rf"{_ENDINGS}|{_LETTERS}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
    "qwen35": rf"{_ENDINGS}|{_LETTERS}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
}
PATTERNS["laguna"] = PATTERNS["qwen2"]
BEFORE = {"laguna": r"[^\n]+|\n+"}
"""Patterns that split text before those of `PATTERNS`."""
NORMALIZED = ("qwen2", "qwen35")
"""Patterns of tokenizers that normalize text to NFC."""


def _byte_letters() -> list[str]:
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = iter(range(0x100, 0x200))
    return [chr(byte) if byte in visible else chr(next(hidden)) for byte in range(256)]


BYTE_LETTERS = _byte_letters()
"""The character that represents each byte in the text of a normal token (GPT-2's alphabet)."""


@dataclass(frozen=True, slots=True, repr=False)
class TokenizerVocabulary:
    """Tokens, merges and special ids of a BPE of bytes, or of characters with bytes for those that have no token.

    Attributes
    ----------
    texts : list of str
        Text of each id: in `BYTE_LETTERS` for normal tokens of a byte-level BPE, else plain.
    types : bytes
        Type of each id: `NORMAL`, `CONTROL`, `USER`, `UNUSED`, or `BYTE` for the bytes of a BPE of characters.
    merges : list of (str, str)
        Merges in the order of priority.
    pre : str
        Name of the pattern that splits text into pieces, a key of `PATTERNS`; `SPACED` for a BPE of characters, which
        splits nothing.
    eos, eot, bos, pad : int or None
        Special ids, `eot` at the end of a turn; None if the file does not name them.
    add_bos : bool
        Whether text must start with `bos`.
    """

    texts: list[str]
    types: bytes
    merges: list[tuple[str, ...]]
    pre: str
    eos: int | None
    eot: int | None
    bos: int | None
    pad: int | None
    add_bos: bool

    @property
    def byte_level(self) -> bool:
        """True if normal tokens are bytes, written in `BYTE_LETTERS`."""
        return self.pre in PATTERNS

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> TokenizerVocabulary:
        """Read and check the keys ``tokenizer.ggml.*``.

        Parameters
        ----------
        metadata : mapping of str
            Keys and values of a GGUF file; arrays may be lists or NumPy arrays.

        Raises
        ------
        Unsupported
            If the tokenizer is neither a byte-level BPE with a known pattern nor that of Gemma 4.
        FormatError
            If a key is missing or the keys contradict each other; the message names the key.
        """
        model = _text(metadata, "tokenizer.ggml.model")
        if model not in ("gpt2", SPACED):
            raise Unsupported(f"tokenizer.ggml.model is {quoted(model)}; dflash runs 'gpt2' (byte-level BPE) and {SPACED!r}")
        pre = SPACED if model == SPACED else _text(metadata, "tokenizer.ggml.pre")
        if pre not in (*PATTERNS, SPACED) or (pre == SPACED) != (model == SPACED):
            raise Unsupported(f"tokenizer.ggml.pre is {quoted(pre)}; dflash runs {' and '.join(map(repr, PATTERNS))}")
        texts = _list(metadata, "tokenizer.ggml.tokens", str)
        types = _types(metadata, len(texts), bytes_too=pre == SPACED)
        if pre == SPACED:
            _check_bytes(texts, types)
        else:
            _check_alphabet(texts, types)
        bos = _token(metadata, "tokenizer.ggml.bos_token_id", len(texts))
        add_bos = _flag(metadata, "tokenizer.ggml.add_bos_token")
        if add_bos and "tokenizer.ggml.bos_token_id" not in metadata:
            raise FormatError("tokenizer.ggml.add_bos_token is true, but tokenizer.ggml.bos_token_id is missing")
        return cls(
            texts=texts,
            types=types,
            merges=[tuple(merge.split(" ")) for merge in _list(metadata, "tokenizer.ggml.merges", str)],
            pre=pre,
            eos=_token(metadata, "tokenizer.ggml.eos_token_id", len(texts)),
            eot=_token(metadata, "tokenizer.ggml.eot_token_id", len(texts)),
            bos=bos,
            pad=_token(metadata, "tokenizer.ggml.padding_token_id", len(texts)),
            add_bos=add_bos,
        )

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


def _require(metadata: Mapping[str, Any], key: str) -> Any:
    if key not in metadata:
        raise FormatError(f"{key} is missing: the file has no complete tokenizer")
    return metadata[key]


def _text(metadata: Mapping[str, Any], key: str) -> str:
    value = _require(metadata, key)
    if not isinstance(value, str):
        raise FormatError(f"{key} is of type {type(value).__name__}, wanted a string")
    return value


def _flag(metadata: Mapping[str, Any], key: str) -> bool:
    value = metadata.get(key, False)
    if not isinstance(value, bool | np.bool_):
        raise FormatError(f"{key} is of type {type(value).__name__}, wanted true or false")
    return bool(value)


def _list(metadata: Mapping[str, Any], key: str, kind: type | tuple[type, ...]) -> list:
    value = _require(metadata, key)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise FormatError(f"{key} is of type {type(value).__name__}, wanted an array")
    wrong = sorted(found.__name__ for found in set(map(type, value)) if not issubclass(found, kind))
    if wrong:
        wanted = "strings" if kind is str else "integers"
        raise FormatError(f"{key} holds values of type {', '.join(wrong)}, wanted {wanted} only")
    return list(value)


def _types(metadata: Mapping[str, Any], n_tokens: int, *, bytes_too: bool) -> bytes:
    key = "tokenizer.ggml.token_type"
    value = _list(metadata, key, (int, np.integer))
    if len(value) != n_tokens:
        raise FormatError(f"{key} has {len(value)} values, wanted {n_tokens}, one for each of tokenizer.ggml.tokens")
    unknown = set(value) - {NORMAL, CONTROL, USER, UNUSED, *([BYTE] if bytes_too else ())}
    if unknown:
        index = next(index for index, kind in enumerate(value) if kind in unknown)
        raise FormatError(f"{key}[{index}] is {value[index]}, wanted 1, 3, 4 or 5{' or 6' if bytes_too else ''}")
    return bytes(value)


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
    if len(set(texts)) != len(texts):
        first: dict[str, int] = {}
        twice = next(index for index, text in enumerate(texts) if first.setdefault(text, index) != index)
        raise FormatError(f"tokenizer.ggml.tokens[{twice}] is {texts[twice]!r} again, after id {first[texts[twice]]}")
    normal = [text for text, kind in zip(texts, types, strict=True) if kind == NORMAL]
    strange = set("".join(normal)) - set(BYTE_LETTERS)
    if strange:
        text = next(text for text in normal if strange & set(text))
        raise FormatError(f"tokenizer.ggml.tokens[{texts.index(text)}] is {text!r}, which is not in GPT-2's alphabet")
    missing = set(BYTE_LETTERS).difference(normal)
    if missing:
        byte = min(BYTE_LETTERS.index(letter) for letter in missing)
        raise FormatError(f"tokenizer.ggml.tokens has no token for the byte 0x{byte:02x}, so not every text has ids")


def _token(metadata: Mapping[str, Any], key: str, n_tokens: int) -> int | None:
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
