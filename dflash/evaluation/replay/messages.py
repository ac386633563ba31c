"""Conversion of recorded messages, with Anthropic's or OpenAI's content blocks, to OpenAI's messages."""

from collections.abc import Mapping
from typing import Any, TypeVar

from dflash.errors import RequestError
from dflash.json_types import JsonMapping, JsonObject

T = TypeVar("T")

_KINDS: dict[type, str] = {str: "a string", list: "an array", dict: "an object"}

_FIELDS = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name", "refusal", "function_call")
"""Fields of a message that `dflash.generation.messages.chat_message` or a chat template reads."""

_TEXT = ("text", "input_text", "output_text")
"""Types of text blocks in Messages, chat completions and Responses."""


def chat_messages(message: JsonMapping) -> list[JsonObject]:
    """Convert one message to one or more messages in OpenAI's format.

    Text blocks stay parts of the message. ``tool_use`` blocks become ``tool_calls``, each ``tool_result`` a message of the
    role ``tool``, ``thinking`` the field ``reasoning_content``, which a template drops or renders by its own rules. Blocks
    without text, as images, become their type in brackets, but for references to tools in results.
    """
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise RequestError(f"role: must be a string, got {role!r:.60}")
    fields = {name: message[name] for name in _FIELDS if message.get(name) is not None}
    if isinstance(message.get("reasoning"), str):
        fields.setdefault("reasoning_content", message["reasoning"])
    field(fields, "reasoning_content", str)
    field(fields, "tool_calls", list)
    if content is None or isinstance(content, str):
        return [{"content": "", **fields}]
    if not isinstance(content, list):
        raise RequestError(f"content: must be a string or an array of blocks, got {content!r:.60}")
    results, parts, calls, thoughts = list[JsonObject](), list[dict[str, str]](), list[Any](), list[str]()
    for block in content:
        match block:
            case {"type": "tool_use" | "server_tool_use", "name": str(name)}:
                calls.append(call(name, block.get("input") or {}, block.get("id")))
            case {"type": "tool_result"}:
                result = _plain([_result_part(part) for part in _list(block.get("content"))])
                results.append({"role": "tool", "content": result, "tool_call_id": block.get("tool_use_id")})
            case {"type": "thinking" | "redacted_thinking" | "reasoning"}:
                thoughts.append(field(block, "thinking", str) or field(block, "text", str) or "")
            case {"type": "refusal", "refusal": str(words)}:
                parts.append({"type": "text", "text": words})
            case _:
                parts.append(_result_part(block) if role == "tool" else _part(block))
    fields["content"] = _plain(parts)
    if calls:
        fields["tool_calls"] = calls
    if any(thoughts):
        fields["reasoning_content"] = "\n".join(filter(None, thoughts))
    return [*results, fields] if parts or calls or thoughts or not results else results


def field(values: JsonMapping, name: str, kind: type[T]) -> T | None:
    """Return a field of an object, None if it is absent or null; raise RequestError if it is of another type."""
    value = values.get(name)
    if value is None or isinstance(value, kind):
        return value
    raise RequestError(f"{name}: must be {_KINDS[kind]}, got {value!r:.60}")


def call(name: str, arguments: str | Mapping[str, Any], identifier: object) -> JsonObject:
    """Return a tool call in OpenAI's format; templates take the arguments as JSON text or as an object."""
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def joined(first: JsonMapping, second: JsonMapping) -> JsonObject:
    """Return one message in place of two of the same role; an empty line separates their texts."""
    both = {**first, "content": "\n\n".join(filter(None, (text(first["content"]), text(second["content"]))))}
    thoughts = [one["reasoning_content"] for one in (first, second) if one.get("reasoning_content")]
    calls = [*first.get("tool_calls", ()), *second.get("tool_calls", ())]
    if thoughts:
        both["reasoning_content"] = "\n".join(thoughts)
    return {**both, "tool_calls": calls} if calls else both


def text(content: object) -> str:
    """Return the text of a string or of an array of blocks, put together as templates do."""
    return "".join(_part(part)["text"] for part in _list(content))


def _list(content: object) -> list[Any]:
    if content is None or isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list):
        raise RequestError(f"content: must be a string or an array of blocks, got {content!r:.60}")
    return content


def _part(block: Any) -> dict[str, str]:
    match block:
        case {"text": str(words)} if block.get("type", "text") in _TEXT:
            return {"type": "text", "text": words}
        case {"type": "tool_reference", "tool_name": str(name)}:
            return {"type": "text", "text": name}
        case {"type": str(kind)} if kind not in (*_TEXT, "tool_use"):
            return {"type": "text", "text": f"[{kind}]"}
    raise RequestError(f"content: must hold blocks with a type and its fields, got {block!r:.60}")


def _result_part(block: object) -> dict[str, str]:
    """Return a part of a tool's result, which may be a reference to a tool."""
    match block:
        case {"type": "tool_reference" as kind, "tool_name": str(name)}:
            return {"type": kind, "tool_name": name}
    return _part(block)


def _plain(parts: list[dict[str, str]]) -> Any:
    """Return a string in place of no part, or of a single one that is a text."""
    return parts if len(parts) > 1 or any("text" not in part for part in parts) else "".join(part["text"] for part in parts)
