"""Texts of the token ids that occur in a result."""

from collections.abc import Iterable
from typing import NamedTuple

from dflash.decode.step import Step
from dflash.model.text.tokenizer import Tokenizer


class TokenText(NamedTuple):
    """Text of one token id. data: UTF-8, perhaps part of a character; the name of a control token."""

    data: bytes
    control: bool = False


def token_texts(steps: Iterable[Step], tokenizer: Tokenizer) -> dict[int, TokenText]:
    """Return the text of every output and draft token of some steps."""
    ids: set[int] = set()
    for step in steps:
        ids.update(step.tokens, step.draft.tokens.tolist())
    return {token: TokenText(tokenizer.token_bytes(token), tokenizer.is_special(token)) for token in sorted(ids)}
