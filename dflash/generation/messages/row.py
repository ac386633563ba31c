"""One row of the table of blocks and items."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from dflash.json_types import JsonMapping

CHAT, RESPONSES, MESSAGES = "chat", "responses", "messages"
"""APIs whose conversations consist of blocks or items."""

SYSTEM, USER, ASSISTANT, RESULT, ITEM = "system", "user", "assistant", "result", "item"
"""Places: content of a message by its role, content of a tool's result, and the items of a Responses conversation."""


class Treatment(Enum):
    """Treatment of a block."""

    READ = "read"
    TEXT = "written as text"
    LEFT_OUT = "left out"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class BlockRow:
    """Treatment of one type of block or item. text: its form in the prompt; the reason; or the words of the refusal."""

    kind: str
    api: str
    places: tuple[str, ...]
    treatment: Treatment
    text: str
    example: JsonMapping


def read(kind: str, api: str, places: tuple[str, ...], text: str, /, **example: Any) -> BlockRow:
    """Return the row of a block that is a part of a message in its own form."""
    return BlockRow(kind, api, places, Treatment.READ, text, example)


def as_text(kind: str, api: str, places: tuple[str, ...], text: str, /, **example: Any) -> BlockRow:
    """Return the row of a block whose content stands in the prompt as text."""
    return BlockRow(kind, api, places, Treatment.TEXT, text, example)


def left_out(kind: str, api: str, places: tuple[str, ...], why: str, /, **example: Any) -> BlockRow:
    """Return the row of a block that the model does not see."""
    return BlockRow(kind, api, places, Treatment.LEFT_OUT, why, example)


def refused(kind: str, api: str, places: tuple[str, ...], words: str, /, **example: Any) -> BlockRow:
    """Return the row of a block with which a request can't be answered."""
    return BlockRow(kind, api, places, Treatment.REFUSED, words, example)
