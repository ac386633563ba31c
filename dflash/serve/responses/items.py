"""Input items of the Responses API as chat messages."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dflash.generation.recovery.special_tokens import THINK
from dflash.serve.parsing.fields import Fields, shown
from dflash.serve.responses.tools import Tools, input_arguments

ROLES = ("user", "assistant", "system", "developer")
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "reasoning_text": "text", "summary_text": "text"}
_TEXTS["refusal"] = "refusal"
"""Types of content parts to the field that holds their text."""


def messages_of(items: Sequence[Any], tools: Tools, path: str = "input") -> list[Mapping[str, Any]]:
    """Convert items to chat messages.

    Neighbouring items of the assistant are one message: reasoning, text and calls, as the model wrote them in one turn.
    Items of types that this server never sends are skipped.

    Parameters
    ----------
    items : sequence
        Parsed JSON of the items.
    tools : Tools
        Tools of the request; past calls are shown under the names that these have for the model.
    path : str
        Name of the field, for messages of errors.

    Raises
    ------
    FieldError
        If an item is malformed, refers to a stored item, or holds anything but text.
    """
    conversation = _Conversation(tools)
    for index, value in enumerate(items):
        item = Fields(value, f"{path}[{index}]")
        kind = item.text("type", "message" if "role" in item.values else None, required="role" not in item.values)
        if kind in _READERS:
            _READERS[kind](conversation, item)
    return [_joined_turn(message) for message in conversation.messages]


class _Conversation:
    """The messages so far. `_turn` is the last one if later items of the assistant belong to it; its content is a list."""

    def __init__(self, tools: Tools) -> None:
        self.messages: list[Mapping[str, Any]] = []
        self._tools = tools
        self._turn: dict[str, Any] | None = None

    def message(self, item: Fields) -> None:
        role, content = item.choice("role", ROLES), _content(item, "content")
        if role is None:
            raise item.error("role", "is required")
        if role != "assistant":
            self._add({"role": role, "content": content})
            return
        text = _joined(content)
        if (thought := _thought(text)) is not None:
            self._think(thought)
            return
        turn = self._open(closed_by="content" if self._turn and "tool_calls" not in self._turn else None)
        turn.setdefault("content", []).append(text)

    def reasoning(self, item: Fields) -> None:
        self._think(_joined(_content(item, "content")) or _joined(_content(item, "summary"), "\n\n"))

    def function_call(self, item: Fields) -> None:
        self._call(item, item.text("arguments", ""))

    def custom_call(self, item: Fields) -> None:
        self._call(item, input_arguments(item.text("input", "")))

    def output(self, item: Fields) -> None:
        call, content = item.text("call_id", required=True), _content(item, "output")
        self._add({"role": "tool", "tool_call_id": call, "content": content})

    def reference(self, item: Fields) -> None:
        raise item.error("type", "item_reference is not supported: send the item itself, or use previous_response_id")

    def _think(self, text: str) -> None:
        if text:
            self._turn = None
            self._open()["reasoning_content"] = text

    def _call(self, item: Fields, arguments: str) -> None:
        name = self._tools.name_of(item.text("name", required=True), item.text("namespace"))
        call = {"id": item.text("call_id", required=True), "type": "function"}
        self._open().setdefault("tool_calls", []).append({**call, "function": {"name": name, "arguments": arguments}})

    def _open(self, *, closed_by: str | None = None) -> dict[str, Any]:
        """Return the assistant's message to add to; one that has the field `closed_by` is complete."""
        if self._turn is None or closed_by in self._turn:
            self._turn = {"role": "assistant"}
            self.messages.append(self._turn)
        return self._turn

    def _add(self, message: Mapping[str, Any]) -> None:
        self._turn = None
        self.messages.append(message)


_READERS: Mapping[str, Callable[[_Conversation, Fields], None]] = {
    "message": _Conversation.message,
    "reasoning": _Conversation.reasoning,
    "function_call": _Conversation.function_call,
    "custom_tool_call": _Conversation.custom_call,
    "function_call_output": _Conversation.output,
    "custom_tool_call_output": _Conversation.output,
    "item_reference": _Conversation.reference,
}


def _content(item: Fields, field: str) -> str | list[Mapping[str, Any]]:
    """Return text, or the text parts of a chat message if there are several."""
    content = item.any(field)
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise item.error(field, f"must be a string or an array of parts, got {shown(content)}")
    texts = [_text(part) for part in item.objects(field)]
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


def _text(part: Fields) -> str:
    kind = part.text("type", required=True)
    if kind not in _TEXTS:
        raise part.error("type", f"only text can be read, got {shown(kind)}")
    text: str = part.text(_TEXTS[kind], required=True)
    return text


def _thought(text: str) -> str | None:
    """Return the reasoning in a message that is nothing else, as pydantic-ai sends it back; None for other messages."""
    opened, closed = THINK
    inner = text.strip()
    if not (inner.startswith(opened) and inner.endswith(closed) and inner.count(closed) == 1):
        return None
    return inner[len(opened) : -len(closed)].removeprefix("\n").removesuffix("\n")


def _joined_turn(message: Mapping[str, Any]) -> Mapping[str, Any]:
    is_turn = message["role"] == "assistant" and "content" in message
    return {**message, "content": "".join(message["content"])} if is_turn else message


def _joined(content: str | list[Mapping[str, Any]], separator: str = "") -> str:
    return content if isinstance(content, str) else separator.join(part["text"] for part in content)
