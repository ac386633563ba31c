"""Control tokens that the text of messages spells out, such as ``<|im_end|>`` in a file that a tool has read."""

import re
from collections.abc import Iterable
from typing import Any

from dflash.json_types import JsonObject

MARK = "\ufdd0"
"""Stands after the first character of a control token that is text. Unicode keeps it for use inside programs."""

ROLE_STARTS = "<|im_start|>", "<|start_header_id|>", "[INST]"
"""Control tokens that begin a message of a chat prompt; a model has one of them."""
TURN_TEXTS = *ROLE_STARTS, "[/INST]", "<|end_header_id|>", "<|turn>", "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"
"""Control tokens that begin a message or the text of one, besides the ends that `Tokenizer` knows."""


class SpelledTokens:
    """Marks control tokens in messages and tools, so that the tokenizer takes them for ordinary text.

    turns: those of them that begin or end a message. In the text of the assistant's messages only these are marked: a chat
        template may look for others there, such as those around the reasoning.
    """

    def __init__(self, control: Iterable[str], turns: Iterable[str]) -> None:
        self._control, self._turns = _starts(control), _starts(turns)

    def marked_message(self, message: JsonObject) -> JsonObject:
        """Return a message with a mark in each spelled-out control token."""
        assistant = message.get("role") == "assistant"
        return {
            name: _marked(value, self._turns if assistant and name != "tool_calls" else self._control)
            for name, value in message.items()
        }

    def marked(self, value: object) -> Any:
        """Return tools or documents with a mark in each spelled-out control token."""
        return _marked(value, self._control)


def _starts(texts: Iterable[str]) -> re.Pattern[str]:
    """Return an expression for the first characters of texts; a text of one character has no place for a mark."""
    rests: dict[str, list[str]] = {}
    for text in texts:
        if len(text) > 1:
            rests.setdefault(text[0], []).append(re.escape(text[1:]))
    each = (f"{re.escape(first)}(?={'|'.join(some)})" for first, some in rests.items())
    return re.compile("|".join(each) or "(?!)")


def _marked(value: object, starts: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return starts.sub(rf"\g<0>{MARK}", value)
    if isinstance(value, dict):
        return {_marked(key, starts): _marked(item, starts) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_marked(item, starts) for item in value)
    return value
