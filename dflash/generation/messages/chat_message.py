"""Messages of library, server and replay in the form that chat templates take."""

import json
from collections.abc import Mapping, Sequence

from dflash.generation.messages.fields import Fields, shown
from dflash.generation.messages.row import ASSISTANT, CHAT, RESULT, SYSTEM, USER, Treatment
from dflash.generation.messages.table import treatment_of
from dflash.generation.messages.written import written
from dflash.json_types import JsonMapping, JsonObject

_PLACES = {"assistant": ASSISTANT, "tool": RESULT, "function": RESULT, "user": USER}
"""Role to the place of its parts; those of other roles are system messages."""

INPUT = "input"
"""Parameter that holds the text of a custom tool's call."""


def chat_messages(messages: Sequence[JsonMapping]) -> list[JsonMapping]:
    """Check and return the messages of a Python caller, whose mappings and tuples may be of any type, see `chat_message`."""
    return [chat_message(Fields(_plain(message), f"messages[{i}]")) for i, message in enumerate(messages)]


def chat_message(message: Fields) -> JsonMapping:
    """Check a message and return it: the client's object, unless a part or a call has a form that templates do not know.

    Older forms become today's: ``function_call`` and the role ``function`` a call and its result, a ``refusal`` without
    content the content. A call of a custom tool becomes one of a function with the text as its only parameter, and a call
    that holds name and arguments itself one with a function.
    """
    role = message.text("role", required=True)
    changed = JsonObject()
    content = message.any("content")
    if isinstance(content, list):
        changed |= _read_parts(message, _PLACES.get(role, SYSTEM))
    elif content is not None and not isinstance(content, str):
        raise message.error("content", f"must be a string or an array of parts, got {shown(content)}")
    if role == "assistant" and not _has_text(changed.get("content", content)) and (refusal := message.text("refusal")):
        changed["content"] = refusal
    calls = list(message.objects("tool_calls"))
    converted = list(map(_read_call, calls))
    if any(new is not call.values for new, call in zip(converted, calls, strict=True)):
        changed["tool_calls"] = converted
    legacy = message.object("function_call")
    if legacy is not None and not calls:
        _check_function(legacy)
        changed |= {"tool_calls": [{"id": "call", "type": "function", "function": legacy.values}], "function_call": None}
    if role == "function":
        changed |= {"role": "tool", "tool_call_id": message.text("name") or "call"}
    return {**message.values, **changed} if changed else message.values


def _has_text(content: object) -> bool:
    return any(part.get("text") for part in content) if isinstance(content, list) else bool(content)


def _read_parts(message: Fields, place: str) -> JsonObject:
    """Return the fields of a message that its parts change; empty if all of them are as templates know them."""
    parts, thoughts, is_same = list[JsonMapping](), list[str](), True
    for part in message.objects("content"):
        kind = part.any("type")
        treatment = Treatment.READ if kind is None else treatment_of(part, CHAT, place)
        if treatment is Treatment.TEXT:
            parts.append({"type": "text", "text": written(part)})
        elif kind == "refusal":
            parts.append({"type": "text", "text": part.text("refusal", required=True)})
        elif kind in ("thinking", "reasoning"):
            thoughts.append(part.text("thinking") or part.text("text") or "")
        elif kind in (None, "input_text", "output_text"):
            parts.append({**part.values, "type": "text", "text": part.text("text", required=True)})
        else:
            part.text("tool_name" if kind == "tool_reference" else "text", required=True)
            parts.append(part.values)
            continue
        is_same = False
    if is_same:
        return {}
    return {"content": parts, **({"reasoning_content": "\n".join(thoughts)} if thoughts else {})}


def _read_call(call: Fields) -> JsonMapping:
    if call.any("type") == "custom":
        return _custom(call)
    function = call.object("function")
    if function is None and isinstance(call.any("name"), str):  # name and arguments stand in the call itself
        _check_function(call)
        inner = {"name": call.any("name"), "arguments": call.any("arguments")}
        return {"id": call.any("id"), "type": "function", "function": inner}
    if function is None:
        raise call.error("function", "is required")
    _check_function(function)
    return call.values


def _check_function(function: Fields) -> None:
    function.text("name", required=True)
    arguments = function.any("arguments")
    if arguments is not None and not isinstance(arguments, str | dict):
        raise function.error("arguments", f"must be a string that holds JSON, got {shown(arguments)}")


def _custom(call: Fields) -> JsonMapping:
    custom = call.object("custom")
    if custom is None:
        raise call.error("custom", "is required")
    arguments = json.dumps({INPUT: custom.text("input", "")}, ensure_ascii=False)
    function = {"name": custom.text("name", required=True), "arguments": arguments}
    return {"id": call.any("id"), "type": "function", "function": function}


def _plain(value: object) -> object:
    """Return a copy of a value with dictionaries and lists in place of other mappings and tuples."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
