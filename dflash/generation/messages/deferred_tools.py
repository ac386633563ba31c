"""Tools whose definitions stand in a tool's result instead of at the beginning of the prompt."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dflash.generation.messages.fields import FieldError
from dflash.json_types import JsonMapping

REFERENCED_CHARACTERS = 1 << 20
"""Characters of the definitions that the tool references of a request stand for; each reference writes one."""

DEFERRED = "defer_loading"

Message = JsonMapping
Tool = JsonMapping


def write_references(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """Replace each ``tool_reference`` in the messages by the definition of the tool.

    Returns: the same objects where a message has no reference. A definition is JSON as chat templates write it; a reference
        to an unknown tool is written as its name.
    """
    names = [part["tool_name"] for message in messages for part in _parts(message) if _is_reference(part)]
    if not names:
        return list(messages)
    written = {_function(tool).get("name", ""): json.dumps(_without_flag(tool), ensure_ascii=False) for tool in tools}
    n = sum(len(written.get(name, name)) for name in names)
    if n > REFERENCED_CHARACTERS:
        most = REFERENCED_CHARACTERS
        raise FieldError(
            "messages", f"its {len(names)} tool references stand for {n} characters, at most {most} are allowed"
        )
    return [_written(message, written) if any(map(_is_reference, _parts(message))) else message for message in messages]


def top_tools(tools: Sequence[Tool]) -> list[Tool]:
    """Return the tools for the beginning of the prompt: those that are not deferred."""
    return [tool for tool in tools if not (tool.get(DEFERRED) or _function(tool).get(DEFERRED))]


def _function(tool: Tool) -> JsonMapping:
    """Return what a tool says of its function: its field ``function``, or the tool itself in a flat form."""
    function = tool.get("function")
    return function if isinstance(function, Mapping) else tool


def _without_flag(tool: Tool) -> Tool:
    inner = {key: value for key, value in _function(tool).items() if key != DEFERRED}
    return {key: inner if key == "function" else value for key, value in tool.items() if key != DEFERRED}


def _parts(message: Message) -> Iterator[Any]:
    content = message.get("content")
    return iter(content if isinstance(content, list) else ())


def _is_reference(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "tool_reference"


def _written(message: Message, definitions: Mapping[str, str]) -> Message:
    parts = []
    for part in _parts(message):
        name = part["tool_name"] if _is_reference(part) else None
        parts.append(part if name is None else {"type": "text", "text": definitions.get(name, name) + "\n"})
    return {**message, "content": parts}
