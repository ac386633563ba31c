"""Input items of the Responses API as chat messages."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dflash.generation.messages.fields import Fields, shown
from dflash.generation.messages.row import ASSISTANT, ITEM, RESPONSES, RESULT, SYSTEM, USER, Treatment
from dflash.generation.messages.table import treatment_of
from dflash.generation.messages.written import written
from dflash.generation.recovery.special_tokens import THINK
from dflash.json_types import JsonMapping, JsonObject
from dflash.serve.responses.tools import Tools, input_arguments

ROLES = ("user", "assistant", "system", "developer")
_PLACES = {"user": USER, "assistant": ASSISTANT}
"""Role to the place of its parts; those of other roles are system messages."""


def messages_of(items: Sequence[Any], tools: Tools, path: str = "input") -> list[JsonMapping]:
    """Convert items to chat messages.

    Neighbouring items of the assistant are one message: reasoning, text and calls, as the model wrote them in one turn.
    `dflash.generation.messages` says what becomes of each type of item; those of unknown types are skipped.
    """
    conversation = _Conversation(tools)
    for index, value in enumerate(items):
        item = Fields(value, f"{path}[{index}]")
        kind = item.text("type", "message" if "role" in item.values else None, required="role" not in item.values)
        treatment = treatment_of(Fields({**item.values, "type": kind}, item.path), RESPONSES, ITEM)
        if treatment is Treatment.TEXT:
            conversation.written(item)
        elif kind in _READERS:
            _READERS[kind](conversation, item)
    return [_joined_turn(message) for message in conversation.messages]


class _Conversation:
    """The messages so far. `_turn` is the last one if later items of the assistant belong to it; its content is a list."""

    def __init__(self, tools: Tools) -> None:
        self.messages: list[JsonMapping] = []
        self._tools = tools
        self._turn: JsonObject | None = None

    def message(self, item: Fields) -> None:
        role = item.choice("role", ROLES)
        if role is None:
            raise item.error("role", "is required")
        content = _content(item, "content", _PLACES.get(role, SYSTEM))
        if role != "assistant":
            self._add({"role": role, "content": content})
            return
        self._say(_joined(content))

    def written(self, item: Fields) -> None:
        self._say(written(item))

    def agent_message(self, item: Fields) -> None:
        author, recipient = item.text("author"), item.text("recipient")
        names = " to ".join(filter(None, (author, recipient)))
        text = _joined(_content(item, "content", USER), "\n") or item.text("message") or ""
        self._add({"role": "user", "content": f"[message of {names}]\n{text}" if names else text})

    def compaction(self, item: Fields) -> None:
        if text := item.text("content") or item.text("summary"):
            self._add({"role": "user", "content": text})

    def hosted_call(self, item: Fields) -> None:
        name = item.text("type").removesuffix("_call")
        arguments = item.any("action") or item.any("operation") or {}
        self._call(item, json.dumps(arguments, ensure_ascii=False), name)

    def _say(self, text: str) -> None:
        if (thought := _thought(text)) is not None:
            self._think(thought)
            return
        turn = self._open(closed_by="content" if self._turn and "tool_calls" not in self._turn else None)
        turn.setdefault("content", []).append(text)

    def reasoning(self, item: Fields) -> None:
        thought = _joined(_content(item, "content", ASSISTANT)) or _joined(_content(item, "summary", ASSISTANT), "\n\n")
        self._think(thought)

    def function_call(self, item: Fields) -> None:
        self._call(item, item.text("arguments", ""))

    def custom_call(self, item: Fields) -> None:
        self._call(item, input_arguments(item.text("input", "")))

    def output(self, item: Fields) -> None:
        call = item.text("call_id") or item.text("id")
        if call is None:
            raise item.error("call_id", "is required")
        content = _content(item, "output", RESULT)
        self._add({"role": "tool", "tool_call_id": call, "content": content})

    def _think(self, text: str) -> None:
        if text:
            self._turn = None
            self._open()["reasoning_content"] = text

    def _call(self, item: Fields, arguments: str, name: str | None = None) -> None:
        name = self._tools.name_of(name or item.text("name", required=True), item.text("namespace"))
        call = {"id": item.text("call_id", required=name != "local_shell") or item.text("id"), "type": "function"}
        self._open().setdefault("tool_calls", []).append({**call, "function": {"name": name, "arguments": arguments}})

    def _open(self, *, closed_by: str | None = None) -> JsonObject:
        """Return the assistant's message to add to; one that has the field `closed_by` is complete."""
        if self._turn is None or closed_by in self._turn:
            self._turn = {"role": "assistant"}
            self.messages.append(self._turn)
        return self._turn

    def _add(self, message: JsonMapping) -> None:
        self._turn = None
        self.messages.append(message)


_READERS: Mapping[str, Callable[[_Conversation, Fields], None]] = {
    "message": _Conversation.message,
    "reasoning": _Conversation.reasoning,
    "function_call": _Conversation.function_call,
    "custom_tool_call": _Conversation.custom_call,
    "function_call_output": _Conversation.output,
    "custom_tool_call_output": _Conversation.output,
    "agent_message": _Conversation.agent_message,
    "compaction": _Conversation.compaction,
    "local_shell_call": _Conversation.hosted_call,
    "shell_call": _Conversation.hosted_call,
    "apply_patch_call": _Conversation.hosted_call,
    "local_shell_call_output": _Conversation.output,
    "shell_call_output": _Conversation.output,
    "apply_patch_call_output": _Conversation.output,
}


def _content(item: Fields, field: str, place: str) -> str | list[JsonMapping]:
    """Return text, or the text parts of a chat message if there are several."""
    content = item.any(field)
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise item.error(field, f"must be a string or an array of parts, got {shown(content)}")
    texts = [text for part in item.objects(field) if (text := _text(part, place)) is not None]
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


def _text(part: Fields, place: str) -> str | None:
    """Return the text of a part; None if it is left out."""
    if "type" not in part.values and place == RESULT:  # the output of a shell
        return written(Fields({**part.values, "type": "output"}, part.path))
    match treatment_of(part, RESPONSES, place):
        case Treatment.LEFT_OUT:
            return None
        case Treatment.TEXT:
            return written(part)
    text: str = part.text("refusal" if part.any("type") == "refusal" else "text", required=True)
    return text


def _thought(text: str) -> str | None:
    """Return the reasoning in a message that is nothing else, as pydantic-ai sends it back; None for other messages."""
    opened, closed = THINK
    inner = text.strip()
    if not (inner.startswith(opened) and inner.endswith(closed) and inner.count(closed) == 1):
        return None
    return inner[len(opened) : -len(closed)].removeprefix("\n").removesuffix("\n")


def _joined_turn(message: JsonMapping) -> JsonMapping:
    is_turn = message["role"] == "assistant" and "content" in message
    return {**message, "content": "".join(message["content"])} if is_turn else message


def _joined(content: str | list[JsonMapping], separator: str = "") -> str:
    return content if isinstance(content, str) else separator.join(part["text"] for part in content)
