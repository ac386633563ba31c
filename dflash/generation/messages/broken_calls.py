"""Past calls whose arguments are no JSON object, as chat templates need one."""

import json
from collections.abc import Mapping
from typing import Any

BROKEN = "arguments"
"""Name of the parameter that holds arguments of a past call which are no JSON object."""


def with_objects(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message whose calls all have arguments that a template can iterate over."""
    calls = message.get("tool_calls")
    if not calls or not any(_is_broken(_arguments(call)) for call in calls):
        return message
    return {**message, "tool_calls": [_mended(call) for call in calls]}


def _mended(call: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = _arguments(call)
    if not _is_broken(arguments):
        return call
    return {**call, "function": {**call["function"], "arguments": {} if arguments is None else {BROKEN: arguments}}}


def _arguments(call: Mapping[str, Any]) -> str | Mapping[str, Any] | None:
    return call["function"].get("arguments")


def _is_broken(arguments: str | Mapping[str, Any] | None) -> bool:
    if not isinstance(arguments, str):
        return arguments is None
    if not arguments.strip():
        return False
    try:
        return not isinstance(json.loads(arguments, parse_int=float), dict)
    except (ValueError, RecursionError):
        return True
