"""Past calls whose arguments are no JSON object, as chat templates need one."""

import json

from dflash.json_types import JsonMapping

BROKEN = "arguments"
"""Name of the parameter that holds arguments of a past call which are no JSON object."""

Part = JsonMapping


def with_objects(message: Part) -> Part:
    """Return a message whose calls all have arguments that a template can iterate over."""
    calls = message.get("tool_calls")
    if not calls or not any(_is_broken(call["function"].get("arguments")) for call in calls):
        return message
    return {**message, "tool_calls": [_mended(call) for call in calls]}


def _mended(call: Part) -> Part:
    arguments = call["function"].get("arguments")
    if not _is_broken(arguments):
        return call
    return {**call, "function": {**call["function"], "arguments": {} if arguments is None else {BROKEN: arguments}}}


def _is_broken(arguments: object) -> bool:
    if not isinstance(arguments, str):
        return arguments is None
    if not arguments.strip():
        return False
    try:
        return not isinstance(json.loads(arguments, parse_int=float), dict)
    except (ValueError, RecursionError):
        return True
