"""Prompts of request bodies: OpenAI's chat completions and Responses, Anthropic's Messages."""

from collections.abc import Iterator
from typing import Any

from dflash.errors import RequestError
from dflash.evaluation.replay.messages import call, chat_messages, field, joined, text
from dflash.evaluation.replay.turn import Message, Turn
from dflash.generation.messages.deferred_tools import DEFERRED
from dflash.json_types import JsonMapping, JsonObject

_SYSTEM = ("system", "instructions")
"""Fields of Messages and of Responses that hold system text."""


def body_turn(name: str, body: JsonMapping) -> Turn:
    """Convert a request body to a turn."""
    found: list[tuple[str, Message]] = [
        ("", {"role": "system", "content": text(body[key])}) for key in _SYSTEM if body.get(key)
    ]
    source = "messages" if "messages" in body else "input"
    given = body.get(source)
    if source == "input" and isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise RequestError(f"{source}: must be an array of at least one message, got {given!r:.60}")
    for item in given:
        if not isinstance(item, dict):
            raise RequestError(f"{source}: must hold objects, got {item!r:.60}")
        if source == "messages":
            found += [("", message) for message in chat_messages(item)]
            continue
        for message in item_messages(item):
            merged(found, "", message)
    messages = [message for _, message in found]
    tools = [one for tool in field(body, "tools", list) or () for one in _tools(tool)]
    settings = dict(field(body, "chat_template_kwargs", dict) or {})
    if isinstance(body.get("enable_thinking"), bool):
        settings["enable_thinking"] = body["enable_thinking"]
    return Turn(name, tuple(messages), tools, settings)


def merged(conversation: list[tuple[str, Message]], name: str, message: Message) -> None:
    """Append a message with its name. An item of the assistant is a part of the answer that the one before it belongs to."""
    if conversation and message["role"] == conversation[-1][1]["role"] == "assistant":
        conversation[-1] = conversation[-1][0], joined(conversation[-1][1], message)
    else:
        conversation.append((name, message))


def item_messages(item: JsonMapping) -> Iterator[JsonObject]:
    """Convert an item of a Responses body; items that the model never sees are skipped."""
    if "role" in item:
        yield from chat_messages(item)
        return
    match item:
        case {"type": "function_call", "name": str(name)}:
            arguments = item.get("arguments") or {}
            yield {"role": "assistant", "content": "", "tool_calls": [call(name, arguments, item.get("call_id"))]}
        case {"type": "custom_tool_call", "name": str(name)}:
            arguments = {"input": item.get("input", "")}
            yield {"role": "assistant", "content": "", "tool_calls": [call(name, arguments, item.get("call_id"))]}
        case {"type": "function_call_output" | "custom_tool_call_output"}:
            yield {"role": "tool", "content": text(item.get("output")), "tool_call_id": item.get("call_id")}
        case {"type": "local_shell_call"}:
            arguments = field(item, "action", dict) or {}
            yield {"role": "assistant", "content": "", "tool_calls": [call("local_shell", arguments, item.get("call_id"))]}
        case {"type": "agent_message"}:
            yield {"role": "user", "content": text(item.get("content"))}
        case {"type": "reasoning"}:
            blocks = field(item, "content", list) or field(item, "summary", list) or ()
            thoughts = "\n".join(field(block, "text", str) or "" for block in blocks if isinstance(block, dict))
            yield {"role": "assistant", "content": "", "reasoning_content": thoughts}


def _tools(tool: Any) -> Iterator[JsonObject]:
    """Convert a tool to OpenAI's format. Those that a server would run are skipped."""
    match tool:
        case {"type": "function", "function": {}}:
            yield tool
        case {"type": "namespace", "tools": [*inner]}:
            for one in inner:
                yield from _tools(one)
        case {"name": str(name), "input_schema": schema} | {"type": "function", "name": str(name), "parameters": schema}:
            deferred = {DEFERRED: True} if tool.get(DEFERRED) is True else {}
            description = {"description": tool["description"]} if tool.get("description") is not None else {}
            function = {"name": name, **description, "parameters": schema}
            yield {"type": "function", "function": function, **deferred}
