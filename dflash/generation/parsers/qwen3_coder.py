"""Tool calls as XML, as Qwen3-Coder and Qwen3.5 write them.

::

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>
"""

import json
import re
from collections.abc import Sequence

from dflash.generation.parsers.events import EventSink
from dflash.generation.parsers.formats import Stage
from dflash.generation.parsers.offered import OfferedTools
from dflash.generation.parsers.registry import register
from dflash.generation.parsers.schema import Member, coerce, only_strings
from dflash.generation.parsers.tags import NAME, SPACE, TagSearch, partial

_OPENING = "<tool_call>"
_HEAD = re.compile(f"({_OPENING}{SPACE})?<function=({NAME})>")
_HEAD_START = re.compile(f"{_OPENING}{SPACE}(?:{partial('<function=')})?")
_TAGS = TagSearch("<parameter=", "</function>", "</tool_call>")
_VALUE_END = TagSearch("<parameter=", "</parameter>", "</function>", newline=True)


@register("tool", "qwen3-coder")
class FunctionTags:
    """Calls in ``<function=NAME>`` tags. ``<tool_call>`` may be missing, except inside reasoning."""

    openings, reasoning_openings = (_OPENING, "<function="), (_OPENING,)
    closings = ("</function>", "</tool_call>")

    def __init__(self, tools: OfferedTools) -> None:
        self._tools = tools

    @staticmethod
    def matches(source: str) -> bool:
        """Return True if the source of a chat template writes these tags."""
        return "<function=" in source and "<parameter=" in source

    def reader(self, sink: EventSink) -> "_FunctionReader":
        """Return a reader for the next call."""
        return _FunctionReader(self._tools, sink)


class _FunctionReader:
    def __init__(self, tools: OfferedTools, sink: EventSink) -> None:
        self._tools, self._sink = tools, sink
        self.stage, self.written, self.is_block = Stage.HEAD, "", False
        self._name = ""
        self._separator = ""
        self._value: _Value | None = None

    def read(self, text: str, start: int) -> int:
        """Consume text and return the position after it."""
        if self.stage is Stage.HEAD:
            start = self._read_head(text, start)
        before = None
        while self.stage is Stage.BODY and before != (start, self._value):
            before = start, self._value
            start = self._read_tag(text, start) if self._value is None else self._read_value(text, start)
        return start

    def finish(self, rest: str) -> None:
        """Pass on the rest of an open value; part of a tag between two parameters is no argument."""
        if self._value is not None:
            self._value.cut(rest)

    def _read_head(self, text: str, start: int) -> int:
        head = _HEAD.match(text, start)
        if head is None:
            if _HEAD_START.fullmatch(text, start) is None:
                self.stage, self.written = Stage.REJECTED, _OPENING
                return start + len(_OPENING)
            return start
        if head[2] not in self._tools:
            self.stage, self.written, self.is_block = Stage.REJECTED, head[0], head[1] is not None
            return head.end()
        self.stage, self._name = Stage.BODY, head[2]
        self._sink.start(self._name)
        self._sink.arguments("{")
        return head.end()

    def _read_tag(self, text: str, start: int) -> int:
        """Consume the next tag between two parameters; other text there is ignored."""
        tag = _TAGS.find(text, start)
        if tag is None:
            return _TAGS.held(text, start)
        key = tag["name"]
        if key is not None:
            self._value = _Value(self._sink, self._tools.members(self._name, key))
            self._sink.arguments(f"{self._separator}{_quoted(key)}: {self._value.opening}")
            self._separator = ", "
            return tag.end()
        self._sink.arguments("}")
        self._sink.end()
        self.stage = Stage.ENDED
        return tag.end() if tag[0] == "</function>" else tag.start()

    def _read_value(self, text: str, start: int) -> int:
        assert self._value is not None, "a parameter is open"
        start = self._value.after_newline(text, start)
        tag = _VALUE_END.find(text, start)
        if tag is None:
            held = _VALUE_END.held(text, start)
            self._value.add(text[start:held])
            return held
        self._value.add(text[start : tag.start()])
        self._value.end()
        self._value = None
        # another tag closes the parameter and is read again
        return tag.end() if tag[0].endswith("</parameter>") else tag.start()


class _Value:
    """Value of one parameter: a string is passed on as it is written, others when they are complete."""

    def __init__(self, sink: EventSink, alternatives: Sequence[Member]) -> None:
        self._sink, self._alternatives = sink, alternatives
        self._streams = only_strings(alternatives)
        self._parts: list[str] = []
        self._at_start = True

    @property
    def opening(self) -> str:
        """JSON text before the value."""
        return '"' if self._streams else ""

    def after_newline(self, text: str, start: int) -> int:
        """Return the position after the line break that follows the opening tag."""
        if not self._at_start or start == len(text):
            return start
        self._at_start = False
        return start + (text[start] == "\n")

    def add(self, text: str) -> None:
        if self._streams:
            self._sink.arguments(_quoted(text)[1:-1])
        else:
            self._parts.append(text)

    def end(self) -> None:
        self._sink.arguments('"' if self._streams else coerce("".join(self._parts), self._alternatives))

    def cut(self, rest: str) -> None:
        """Pass on an incomplete value as it was written."""
        self.add(rest)
        self._sink.arguments("".join(self._parts))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
