"""Reasoning, content and tool calls of a completion, put together from events."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from dflash.generation.parsers.events import ArgumentsDelta, CallEnd, CallStart, ContentDelta, Event, ReasoningDelta
from dflash.json_types import JsonObject


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model wrote.

    Parameters
    ----------
    id : str
        Identifier, unique among all completions.
    name : str
        Name of the function.
    arguments : str
        Arguments as JSON text, numbers as the model wrote them.
    complete : bool
        The model has closed the call. The arguments of a call that the run cuts are not closed either.
    """

    id: str
    name: str
    arguments: str
    complete: bool = True

    @property
    def parsed(self) -> JsonObject | None:
        """Arguments as a dict; None if they are not a JSON object."""
        try:
            value = json.loads(self.arguments)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None

    def as_message(self) -> JsonObject:
        """Return the call as an item of ``tool_calls`` in an assistant message, in OpenAI's format."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """Parts of a completion.

    content: visible text, with the white space around calls as the model wrote it.
    reasoning: reasoning, without its tags and the line breaks next to them.
    tool_calls:
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    @classmethod
    def of(cls, events: Iterable[Event]) -> "ParsedOutput":
        """Put the events of a completion together."""
        content, reasoning = [], []
        starts: list[CallStart] = []
        arguments: list[list[str]] = []
        ended = set()
        for event in events:
            match event:
                case ContentDelta():
                    content.append(event.text)
                case ReasoningDelta():
                    reasoning.append(event.text)
                case CallStart():
                    starts.append(event)
                    arguments.append([])
                case ArgumentsDelta():
                    arguments[event.index].append(event.text)
                case CallEnd():
                    ended.add(event.index)
        calls = [ToolCall(start.id, start.name, "".join(arguments[n]), n in ended) for n, start in enumerate(starts)]
        return cls("".join(content), "".join(reasoning), calls)
