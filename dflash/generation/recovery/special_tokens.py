"""Special tokens of a model, looked up in its tokenizer."""

from dflash.decode.special_tokens import SpecialTokens
from dflash.generation.parsers.registry import find, matching
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer

CALL = "<tool_call>", "</tool_call>"
THINK = "<think>", "</think>"
_BLANK = (" ", "  ", "\t", "\n", "\n\n", "\n\n\n", " \n", " \n\n", "\r\n")


def opening_token(tokenizer: Tokenizer, template: ChatTemplate | None) -> int | None:
    """Return the token that opens a tool call in the format of a chat template; None if there is none."""
    name = matching("tool", "" if template is None else template.source)
    tokens = CALL if name is None else find("tool", name, "").tokens
    return tokenizer.id_of(tokens[0]) if tokens else None


def special_tokens_of(tokenizer: Tokenizer) -> SpecialTokens:
    """Return the special tokens that recoveries need."""
    silent = (tokenizer.id_of(text) for text in (*_BLANK, *THINK))
    return SpecialTokens(
        silent=frozenset(token for token in silent if token is not None),
        call=_pair(tokenizer, *CALL),
        think=_pair(tokenizer, *THINK),
    )


def _pair(tokenizer: Tokenizer, opens: str, closes: str) -> tuple[int, int] | None:
    first, last = tokenizer.id_of(opens), tokenizer.id_of(closes)
    return None if first is None or last is None else (first, last)
