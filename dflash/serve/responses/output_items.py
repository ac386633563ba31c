"""Output items of the Responses API while they are written: each yields its events, and what it holds at the end."""

from collections.abc import Iterator
from typing import Any, Protocol

from dflash.generation.parsers.events import CallStart
from dflash.json_types import JsonMapping, JsonObject
from dflash.serve.responses.input_text import InputText
from dflash.serve.responses.tools import Tool

Payload = tuple[str, JsonObject]
"""Type of an event and its fields, without the sequence number."""

IN_PROGRESS, COMPLETED, INCOMPLETE = "in_progress", "completed", "incomplete"


class OpenItem(Protocol):
    """An item that is being written."""

    def opening(self) -> Iterator[Payload]:
        """Yield the events after ``response.output_item.added``."""

    def add(self, text: str) -> Iterator[Payload]:
        """Yield the events of more text."""

    def closing(self, status: str) -> Iterator[Payload]:
        """Yield the events before ``response.output_item.done``; the status is completed or incomplete."""

    def item(self, status: str) -> JsonObject:
        """Return the item with what it holds so far. Its first version has no content, summary or arguments yet."""


class _Written:
    """Position of an item in the output, and its text so far."""

    prefix = ""

    def __init__(self, number: int, suffix: str) -> None:
        self.id = f"{self.prefix}_{suffix}_{number}"
        self.texts: list[str] = []
        self._where = {"item_id": self.id, "output_index": number}

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def opening(self) -> Iterator[Payload]:
        yield from ()

    def _event(self, kind: str, **fields: Any) -> Payload:
        return f"response.{kind}", {**self._where, **fields}

    def _delta(self, kind: str, text: str, **fields: Any) -> Iterator[Payload]:
        if text:
            self.texts.append(text)
            yield self._event(f"{kind}.delta", **fields, delta=text)


class MessageItem(_Written):
    """A message with one part of text."""

    prefix = "msg"

    def opening(self) -> Iterator[Payload]:
        """Open the part."""
        yield self._event("content_part.added", content_index=0, part=self._part())

    def add(self, text: str) -> Iterator[Payload]:
        """Add text."""
        yield from self._delta("output_text", text, content_index=0, logprobs=[])

    def closing(self, status: str) -> Iterator[Payload]:  # noqa: ARG002 - cut text is final as well
        """Close the part."""
        yield self._event("output_text.done", content_index=0, text=self.text, logprobs=[])
        yield self._event("content_part.done", content_index=0, part=self._part())

    def item(self, status: str) -> JsonObject:
        """Return the message."""
        content = [] if status == IN_PROGRESS else [self._part()]
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _part(self) -> JsonObject:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}


class ReasoningItem(_Written):
    """Reasoning as a summary with one part, since that is what clients show and send back.

    encrypted: value of ``encrypted_content``. Some clients drop an item that has none.
    """

    prefix = "rs"

    def __init__(self, number: int, suffix: str, *, encrypted: str | None) -> None:
        super().__init__(number, suffix)
        self._encrypted = encrypted

    def opening(self) -> Iterator[Payload]:
        """Open the part."""
        yield self._event("reasoning_summary_part.added", summary_index=0, part=self._part())

    def add(self, text: str) -> Iterator[Payload]:
        """Add text."""
        yield from self._delta("reasoning_summary_text", text, summary_index=0)

    def closing(self, status: str) -> Iterator[Payload]:  # noqa: ARG002 - cut text is final as well
        """Close the part."""
        yield self._event("reasoning_summary_text.done", summary_index=0, text=self.text)
        yield self._event("reasoning_summary_part.done", summary_index=0, part=self._part())

    def item(self, status: str) -> JsonObject:
        """Return the reasoning."""
        summary = [] if status == IN_PROGRESS else [self._part()]
        item = {"id": self.id, "type": "reasoning", "status": status, "summary": summary}
        return item if self._encrypted is None else {**item, "encrypted_content": self._encrypted}

    def _part(self) -> JsonObject:
        return {"type": "summary_text", "text": self.text}


class CallItem(_Written):
    """A call of a function. The arguments of a call that is cut have no event of their end, so that no client runs it."""

    prefix = "fc"

    def __init__(self, number: int, suffix: str, start: CallStart, tool: Tool) -> None:
        super().__init__(number, suffix)
        self._names: JsonMapping = {"call_id": start.id, "name": tool.name}
        if tool.namespace is not None:
            self._names = {**self._names, "namespace": tool.namespace}

    def add(self, text: str) -> Iterator[Payload]:
        """Add arguments."""
        yield from self._delta("function_call_arguments", text)

    def closing(self, status: str) -> Iterator[Payload]:
        """Send the arguments."""
        if status == COMPLETED:
            yield self._event("function_call_arguments.done", name=self._names["name"], arguments=self.text)

    def item(self, status: str) -> JsonObject:
        """Return the call."""
        return {"id": self.id, "type": "function_call", "status": status, **self._names, "arguments": self.text}


class CustomCallItem(CallItem):
    """A call of a custom tool; the function that stands for it has the text as its only parameter."""

    prefix = "ctc"

    def __init__(self, number: int, suffix: str, start: CallStart, tool: Tool) -> None:
        super().__init__(number, suffix, start, tool)
        self._input = InputText()

    def add(self, text: str) -> Iterator[Payload]:
        """Add the text in more of the arguments."""
        yield from self._delta("custom_tool_call_input", self._input.push(text))

    def closing(self, status: str) -> Iterator[Payload]:
        """Send the text."""
        complete = status == COMPLETED
        yield from self._delta("custom_tool_call_input", self._input.finish(complete=complete))
        if complete:
            yield self._event("custom_tool_call_input.done", input=self.text)

    def item(self, status: str) -> JsonObject:
        """Return the call."""
        return {"id": self.id, "type": "custom_tool_call", "status": status, **self._names, "input": self.text}
