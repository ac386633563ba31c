"""Numbers in the arguments of past tool calls, as the model wrote them."""

import json
import re
from collections.abc import Mapping
from typing import Any

Message = Mapping[str, Any]

_MAYBE = re.compile(r"\d\.\d|\d[eE]|\d{4000}|-0")
"""Text that may hold a number which Python would write differently. `str(int)` is limited to 4,300 digits."""


class _Number(str):
    """Text of a number that Python would write differently."""


def with_written_numbers(message: Message) -> Message:
    """Replace numbers in JSON arguments by their text where conversion would change them, as ``1e3`` to ``1000.0``.

    Parameters
    ----------
    message : mapping
        Message in OpenAI's format, for a template that writes each argument in tags of its own. Such templates write strings
        and numbers in the same way.

    Returns
    -------
    mapping
        The same object if it has no such number. Numbers inside arrays and objects are converted all the same.
    """
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not any(_MAYBE.search(_text(call)) for call in calls):
        return message
    return {**message, "tool_calls": [_converted(call) for call in calls]}


def _text(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    return arguments if isinstance(arguments, str) else ""


def _converted(call: Any) -> Any:
    try:
        arguments = json.loads(_text(call), parse_float=_float, parse_int=_int)
        items = [(key, str(value) if isinstance(value, _Number) else _plain(value)) for key, value in arguments.items()]
    except (ValueError, AttributeError, RecursionError):
        return call  # the template reports arguments that are no JSON object
    return {**call, "function": {**call["function"], "arguments": dict(items)}}


def _float(text: str) -> Any:
    value = float(text)
    return value if repr(value) == text else _Number(text)


def _int(text: str) -> Any:
    value = int(text) if len(text) < 4000 else None
    return value if repr(value) == text else _Number(text)


def _plain(value: Any) -> Any:
    if isinstance(value, _Number):
        return float(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
