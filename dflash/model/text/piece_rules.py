"""Rules by which tokenizers split text into pieces before BPE, by the name in ``tokenizer.ggml.pre``."""

from __future__ import annotations

from dataclasses import dataclass

_LETTERS = r"[^\r\n\p{L}\p{N}]?"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_QWEN2 = rf"{_ENDINGS}|{_LETTERS}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN35 = rf"{_ENDINGS}|{_LETTERS}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_LLAMA3 = rf"{_ENDINGS}|{_LETTERS}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_TEKKEN = rf"{_LETTERS}{_UPPER}*{_LOWER}+|{_LETTERS}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


@dataclass(frozen=True, slots=True)
class PieceRule:
    """Pieces of a byte-level BPE, which merges inside pieces only.

    patterns: regular expressions; each splits what the one before it has left, into its matches and the text between them.
    nfc: text is normalized to NFC first.
    whole_tokens: a piece that is a token stays whole, even if no merges lead to it.
    adds_bos: text starts with the beginning-of-sequence token where the file does not say.
    """

    patterns: tuple[str, ...]
    nfc: bool = False
    whole_tokens: bool = False
    adds_bos: bool = False


PIECE_RULES = {
    "qwen2": PieceRule((_QWEN2,), nfc=True),
    "deepseek-r1-qwen": PieceRule((_QWEN2,), nfc=True),
    "qwen35": PieceRule((_QWEN35,), nfc=True),
    "laguna": PieceRule((r"[^\n]+|\n+", _QWEN2)),
    "gpt-2": PieceRule((_GPT2,)),
    "smollm": PieceRule((r"\p{N}", _GPT2)),
    "llama-bpe": PieceRule((_LLAMA3,), whole_tokens=True, adds_bos=True),
    "llama3": PieceRule((_LLAMA3,), whole_tokens=True, adds_bos=True),
    "llama-v3": PieceRule((_LLAMA3,), whole_tokens=True, adds_bos=True),
    "tekken": PieceRule((_TEKKEN,), whole_tokens=True, adds_bos=True),
}
