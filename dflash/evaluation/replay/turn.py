"""Turns of a session: the prompts that a model is asked to answer."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dflash.json_types import JsonMapping

Message = JsonMapping


class Turn(NamedTuple):
    """A prompt of a recorded conversation: all messages before an answer.

    messages: messages in OpenAI's format, the last one before the answer included.
    """

    name: str
    messages: Sequence[Message]
    tools: Sequence[JsonMapping] = ()
    settings: Mapping[str, Any] = {}


def growing(messages: Iterable[tuple[str, Message]], whole: Turn | None = None) -> Iterator[Turn]:
    """Yield a turn for each assistant message of a conversation, and one for the end if another role has the last word."""
    shared = whole or Turn("end", ())
    before: list[Message] = []
    for name, message in messages:
        if message["role"] == "assistant" and before and before[-1]["role"] != "assistant":
            yield shared._replace(name=name, messages=tuple(before))
        before.append(message)
    if before and before[-1]["role"] != "assistant":
        yield shared._replace(messages=tuple(before))
