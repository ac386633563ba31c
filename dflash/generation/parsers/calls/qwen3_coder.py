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

from dflash.generation.parsers.calls.value_end import CALL_END, FUNCTION_END, PARAMETER, value_end
from dflash.generation.parsers.events import EventSink
from dflash.generation.parsers.formats import CallReader, Stage, ToolFormat
from dflash.generation.parsers.offered import OfferedTools
from dflash.generation.parsers.registry import register
from dflash.generation.parsers.schema import Member, coerce, only_strings
from dflash.generation.parsers.tags import NAME, SPACE, TagSearch, partial

_OPENING = "<tool_call>"
_HEAD = re.compile(f"({_OPENING}{SPACE})?<function=({NAME})>")
_HEAD_START = re.compile(f"{_OPENING}{SPACE}(?:{partial('<function=')})?")
_TAGS = TagSearch(PARAMETER, FUNCTION_END, CALL_END)


@register("tool", "qwen3-coder")
class FunctionTags(ToolFormat):
    """Calls in ``<function=NAME>`` tags.

    ``<tool_call>`` may be missing if the function is offered, but not inside reasoning, nor if a tool is strict: grammars
    bind calls from that tag on.
    """

    reasoning_openings: tuple[str, ...] = (_OPENING,)
    closings = (FUNCTION_END, CALL_END)
    closing = CALL_END
    tokens = (_OPENING, CALL_END)

    def __init__(self, tools: OfferedTools) -> None:
        super().__init__(tools)
        self.openings: tuple[str, ...] = (_OPENING,) if tools.has_strict else (_OPENING, "<function=")

    @staticmethod
    def matches(source: str) -> bool:
        """Return True if the source of a chat template writes these tags."""
        return "<function=" in source and PARAMETER in source

    def reader(self, sink: EventSink, opened: str = _OPENING, *, in_reasoning: bool = False) -> CallReader:  # noqa: ARG002
        """Return a reader for the next call."""
        return _FunctionReader(self._tools, sink, in_reasoning)


class _FunctionReader:
    def __init__(self, tools: OfferedTools, sink: EventSink, in_reasoning: bool) -> None:
        self._tools, self._sink, self._in_reasoning = tools, sink, in_reasoning
        self.stage, self.written, self.is_block = Stage.HEAD, "", False
        self._name = ""
        self._keys = set[str]()
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

    def finish(self, rest: str, *, cut: bool) -> None:
        """Pass on the rest of an open value; part of a tag between two parameters is no argument."""
        value = self._value
        if value is None:
            return
        ended = not cut and value.end.is_ended(rest)
        if not ended and not value.end.is_closed(rest):
            value.cut(rest)
            return
        value.close()
        if ended:
            self._end()

    def settle(self, rest: str, *, cut: bool) -> bool:  # noqa: ARG002
        """Return True if the head of a call is no text: the run has cut it, and more would have made it a call."""
        return cut

    def _read_head(self, text: str, start: int) -> int:
        head = _HEAD.match(text, start)
        if head is None:
            if _HEAD_START.fullmatch(text, start) is None:
                self.stage, self.written = Stage.REJECTED, _OPENING
                return start + len(_OPENING)
            return start
        if not self._tools.may_call(head[2], in_block=head[1] is not None, in_reasoning=self._in_reasoning):
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
        if key is None:
            self._end()
            return tag.end() if tag[0] == FUNCTION_END else tag.start()
        alternatives = self._tools.members(self._name, key)
        if key in self._keys:  # read to its end, and dropped
            self._value = _Value(EventSink(""), alternatives)
            return tag.end()
        self._value = _Value(self._sink, alternatives)
        self._sink.arguments(f"{', ' if self._keys else ''}{_quoted(key)}: {self._value.opening}")
        self._keys.add(key)
        return tag.end()

    def _read_value(self, text: str, start: int) -> int:
        value = self._value
        assert value is not None, "a parameter is open"
        if not value.begins(text, start):
            return start
        found = value.end.find(text, start, self._is_next)
        if found is None:
            held = value.end.held(text, start)
            value.add(text[start:held])
            return held
        value.add(text[start : found.text])
        value.close()
        self._value = None
        return found.call

    def _is_next(self, key: str, closed: bool) -> bool:
        """Return True if a parameter may begin after the open value. No parameter begins twice."""
        assert self._value is not None, "a parameter is open"
        if closed and not self._value.is_text:
            return True
        return key not in self._keys and (closed or self._tools.declares(self._name, key))

    def _end(self) -> None:
        self._sink.arguments("}")
        self._sink.end()
        self.stage = Stage.ENDED


class _Value:
    """Value of one parameter: a string is passed on as it is written, others when they are complete."""

    def __init__(self, sink: EventSink, alternatives: Sequence[Member]) -> None:
        self._sink, self._alternatives = sink, alternatives
        self._streams = only_strings(alternatives)
        self._parts: list[str] = []
        self._begun = self._skips_break = False
        self.end = value_end(block=False)

    @property
    def is_text(self) -> bool:
        """True if the value may be a string, which is written without quotes."""
        return self._streams or any("string" in member.kinds for member in self._alternatives)

    @property
    def opening(self) -> str:
        """JSON text before the value."""
        return '"' if self._streams else ""

    def begins(self, text: str, start: int) -> bool:
        """Look at the first character, which tells where the value begins. Return False if there is none yet."""
        if not self._begun and start < len(text):
            self._begun, self._skips_break = True, text[start] == "\n"
            self.end = value_end(block=self._skips_break)
        return self._begun

    def add(self, text: str) -> None:
        """Add text; the line break after the tag of the parameter is dropped."""
        if self._skips_break and text:
            self._skips_break, text = False, text[1:]
        if self._streams:
            self._sink.arguments(_quoted(text)[1:-1])
        else:
            self._parts.append(text)

    def close(self) -> None:
        """End the value."""
        self._sink.arguments('"' if self._streams else coerce("".join(self._parts), self._alternatives))

    def cut(self, rest: str) -> None:
        """Pass on an incomplete value as it was written."""
        self.add(rest)
        self._sink.arguments("".join(self._parts))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
