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
    call, think = _pair(tokenizer, *CALL), _pair(tokenizer, *THINK)
    control = tokenizer.control_ids.difference(call or (), think or ())
    blank = (tokenizer.id_of(text) for text in (*_BLANK, *THINK))
    silent = control.union(token for token in blank if token is not None)
    return SpecialTokens(silent, control, call, think)


def _pair(tokenizer: Tokenizer, opens: str, closes: str) -> tuple[int, int] | None:
    first, last = tokenizer.id_of(opens), tokenizer.id_of(closes)
    return None if first is None or last is None else (first, last)
