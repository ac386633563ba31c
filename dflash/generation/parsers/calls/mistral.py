"""Tool calls of Mistral: ``[TOOL_CALLS] [{"name": ..., "arguments": {...}}]`` or ``[TOOL_CALLS]name[ARGS]{...}``."""

import re

from dflash.generation.parsers.calls.json_object import ObjectForm, ObjectReader
from dflash.generation.parsers.calls.json_value import JSONValue
from dflash.generation.parsers.events import EventSink
from dflash.generation.parsers.formats import CallReader, Stage, ToolFormat
from dflash.generation.parsers.offered import OfferedTools
from dflash.generation.parsers.registry import register
from dflash.generation.parsers.tags import SPACE, beginnings

OPENING, ARGUMENTS, CALL_ID, SEPARATOR = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", ","
_LISTED, _NEXT = ObjectForm(OPENING, SPACE, "[", SPACE), ObjectForm(SPACE, SEPARATOR, SPACE)
_LETTER, _ID = r"[^\[\]{}\" \t\r\n]", r"[A-Za-z0-9_-]{0,64}"
_NAME = rf"{_LETTER}(?:[ \t\r]{{0,64}}{_LETTER}){{0,255}}?"  # white space within: at its ends it would match in many ways
_OPEN, _ARGS, _CALL = map(re.escape, (OPENING, ARGUMENTS, CALL_ID))
_HEAD = re.compile(rf"{_OPEN}{SPACE}({_NAME}){SPACE}(?:{_CALL}{_ID})?{_ARGS}{SPACE}(?=\{{)")
_TO_ARGUMENTS = beginnings(ARGUMENTS, SPACE)
_HEAD_START = re.compile(
    rf"{_OPEN}{SPACE}(?:{_NAME[:-1]}{SPACE}(?:{_TO_ARGUMENTS}|{beginnings(CALL_ID)}|{_CALL}{_ID}{_TO_ARGUMENTS}))?"
)


@register("tool", "mistral")
class ToolCalls(ToolFormat):
    """Calls after ``[TOOL_CALLS]``: an array of objects with ``name`` and ``arguments``, or a name and its arguments.

    Models of 2025 and later write the second form, some with ``[CALL_ID]`` and an identifier, which is dropped, before
    ``[ARGS]``. Both are read, whichever the template shows.
    """

    openings = reasoning_openings = (OPENING,)
    closing, separator = "]", SEPARATOR
    tokens = (OPENING, ARGUMENTS, CALL_ID)

    @staticmethod
    def matches(source: str) -> bool:
        """Return True if the source of a chat template writes such calls."""
        return OPENING in source

    def reader(self, sink: EventSink, opened: str = OPENING, *, in_reasoning: bool = False) -> CallReader:
        """Return a reader for the next call."""
        if opened == SEPARATOR:
            return ObjectReader(_NEXT, self._tools, sink)
        return _Reader(self._tools, sink, in_reasoning)


class _Reader:
    """Reads the call after ``[TOOL_CALLS]``, in either form."""

    def __init__(self, tools: OfferedTools, sink: EventSink, in_reasoning: bool) -> None:
        self._tools, self._sink, self._in_reasoning = tools, sink, in_reasoning
        self._listed = ObjectReader(_LISTED, tools, sink, in_reasoning=in_reasoning)
        self._stage, self._written, self._is_listed = Stage.HEAD, "", False
        self._value = JSONValue()

    @property
    def stage(self) -> Stage:
        """Progress; `read` advances it."""
        return self._listed.stage if self._is_listed else self._stage

    @property
    def is_block(self) -> bool:
        """A rejected call has the form of a call."""
        return False

    @property
    def written(self) -> str:
        """Text that was consumed before the call started or was rejected."""
        return self._listed.written if self._is_listed else self._written

    def read(self, text: str, start: int) -> int:
        """Consume text and return the position after it."""
        if self._is_listed:
            return self._listed.read(text, start)
        if self._stage is Stage.HEAD:
            return self._read_head(text, start)
        return self._read_arguments(text, start)

    def settle(self, rest: str, *, cut: bool) -> bool:  # noqa: ARG002
        """Return True if the head of a call is no text: the run has cut it, and more would have made it a call."""
        return cut

    def finish(self, rest: str, *, cut: bool) -> None:
        """Pass on the rest of arguments that the run has cut."""
        if self._is_listed:
            self._listed.finish(rest, cut=cut)
        else:
            self._sink.arguments(rest)

    def _read_head(self, text: str, start: int) -> int:
        if _LISTED.head.match(text, start) is not None:
            self._is_listed = True
            return self._listed.read(text, start)
        head = _HEAD.match(text, start)
        if head is not None and self._tools.may_call(head[1], in_reasoning=self._in_reasoning):
            self._stage = Stage.BODY
            self._sink.start(head[1])
            return self._read_arguments(text, head.end())
        may_follow = _LISTED.head_start.fullmatch(text, start) or _HEAD_START.fullmatch(text, start)
        if head is None and may_follow is not None:
            return start
        end = start + len(OPENING) if head is None else head.end()
        self._stage, self._written = Stage.REJECTED, text[start:end]
        return end

    def _read_arguments(self, text: str, start: int) -> int:
        end = self._value.read(text, start)
        self._sink.arguments(text[start:end])
        if self._value.ended:
            self._sink.end()
            self._stage = Stage.ENDED
        return end
