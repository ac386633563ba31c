"""Numbers in the arguments of past tool calls, as the model wrote them."""

import json
import re
from collections.abc import Mapping
from typing import Any

from dflash.json_types import JsonMapping

Message = JsonMapping

_MAYBE = re.compile(r"\d\.\d|\d[eE]|\d{4000}|-0")
"""Text that may hold a number which Python would write differently. `str(int)` is limited to 4,300 digits."""


class WrittenFloat(float):
    """A number that Python would write differently, with its text."""

    __slots__ = ("text",)
    text: str


class _Digits(str):
    """Text of a whole number that Python would write differently."""


def written_float(text: str) -> float:
    """Convert a number of JSON text, for ``json.loads(parse_float=...)``; `WrittenFloat` if Python writes it differently."""
    value = float(text)
    if repr(value) == text:
        return value
    number = WrittenFloat(value)
    number.text = text
    return number


def with_written_numbers(message: Message) -> Message:
    """Replace arguments of past calls by their text where conversion would change a number, as ``1e3`` to ``1000.0``.

    message: message in OpenAI's format, for a template that writes each argument in tags of its own. Such templates write a
        string as it is, a number as its text, and arrays and objects as JSON.
    """
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    converted = [_converted(call) for call in calls]
    if all(new is old for new, old in zip(converted, calls, strict=True)):
        return message
    return {**message, "tool_calls": converted}


def _converted(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if isinstance(arguments, str) and not _MAYBE.search(arguments):
        return call
    try:
        if isinstance(arguments, str):
            arguments = json.loads(arguments, parse_float=written_float, parse_int=_int)
        if not isinstance(arguments, dict) or not _differs(arguments):
            return call
        texts = {key: _json(value) if _differs(value) else value for key, value in arguments.items()}
    except (ValueError, RecursionError):
        return call  # the template reports arguments that are no JSON object
    return {**call, "function": {**call["function"], "arguments": texts}}


def _int(text: str) -> Any:
    value = int(text) if len(text) < 4000 else None
    return value if repr(value) == text else _Digits(text)


def _differs(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_differs, value.values()))
    return any(map(_differs, value)) if isinstance(value, list) else isinstance(value, WrittenFloat | _Digits)


def _json(value: object) -> str:
    """Return a value as JSON in the form of `json.dumps`, which is that of chat templates, with its numbers as written."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key, ensure_ascii=False)}: {_json(item)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json, value)) + "]"
    if isinstance(value, WrittenFloat):
        return value.text
    return str(value) if isinstance(value, _Digits) else json.dumps(value, ensure_ascii=False)
