"""Reader of calls that no token marks: JSON objects in a code fence, in ``<tools>`` tags, or on lines of their own."""

import re
from typing import NamedTuple

from dflash.generation.parsers.calls.json_object import ObjectForm, ObjectReader
from dflash.generation.parsers.events import ArgumentsDelta, CallStart, EventSink
from dflash.generation.parsers.formats import Stage
from dflash.generation.parsers.offered import OfferedTools

FENCE, TOOLS = "```", "<tools>"
OPENINGS = FENCE, TOOLS, "{"
"""Texts at the start of a line that such calls may begin with."""

_FORM = ObjectForm(only=("name", "arguments"), is_block=False)
_BLANK = re.compile(r"[ \t\r\n]*")
_WRAPPERS = {
    re.compile(r"```(?:json)?[ \t]{0,8}\r?\n"): FENCE,
    re.compile(TOOLS): "</tools>",
    re.compile(r"(?=\{)"): "",
}
_STARTS = re.compile(r"`{1,3}|```(?:j|js|jso|json)?[ \t]{0,8}\r?|<(?:t(?:o(?:o(?:l(?:s)?)?)?)?)?")


class _Call(NamedTuple):
    name: str
    arguments: str


class UntaggedReader:
    """Holds text back until the output ends, and then passes it on as calls if it is nothing else.

    It is if it consists of fences, tags or bare objects with white space between them, and each object has the keys ``name``
    and ``arguments`` alone, the function is offered, and the arguments fit its parameters. As soon as something else comes,
    all of it is text. The first bracket may be doubled, the last one then too, since the templates of Qwen2.5 show calls as
    ``{{"name": ..., "arguments": ...}}``.
    """

    is_block = False

    def __init__(self, tools: OfferedTools, sink: EventSink) -> None:
        self._tools, self._sink = tools, sink
        self.stage, self._raw = Stage.HEAD, list[str]()
        self._calls: list[_Call] = []
        self._own = EventSink("")
        self._object: ObjectReader | None = None
        self._closing, self._next = "", UntaggedReader._opening
        self._is_doubled = False

    @property
    def written(self) -> str:
        """Text that was consumed."""
        return "".join(self._raw)

    def read(self, text: str, start: int) -> int:
        """Consume text and return the position after it."""
        end, before = start, None
        while self.stage is Stage.HEAD and before != (end, self._next):
            before = end, self._next
            if self._next is not UntaggedReader._inside:
                blank = _BLANK.match(text, end)
                end = end if blank is None else blank.end()
            if end < len(text):
                end = self._next(self, text, end)
        if self.stage is Stage.REJECTED and end == start and not self._raw:
            end += 1  # the first character of the opening at least
        self._raw.append(text[start:end])
        return end

    def settle(self, rest: str, *, cut: bool) -> bool:
        """Pass the calls on if the output ends after them; only the last fence of a finished output may be open."""
        is_closed = self._next is UntaggedReader._opening
        is_open = self._next is UntaggedReader._objects and not cut and self._closing.startswith(rest)
        if not self._calls or not (is_open or (is_closed and not rest)):
            return False
        for call in self._calls:
            self._sink.start(call.name)
            self._sink.arguments(call.arguments)
            self._sink.end()
        return True

    def finish(self, rest: str, *, cut: bool) -> None:
        """Do nothing: the stage is never `BODY`."""

    def _opening(self, text: str, start: int) -> int:
        if self._is_doubled and text[start] == "}":
            return self._skip(start)
        for pattern, closing in _WRAPPERS.items():
            found = pattern.match(text, start)
            if found is not None:
                self._closing, self._next = closing, UntaggedReader._objects
                return found.end()
        return start if _STARTS.fullmatch(text, start) else self._reject(start)

    def _objects(self, text: str, start: int) -> int:
        """Begin the next object, or leave the fence after at least one."""
        if text[start] == "{":
            if start + 1 == len(text):  # the bracket may be doubled
                return start
            self._object, self._is_doubled = ObjectReader(_FORM, self._tools, self._own), text[start + 1] == "{"
            self._next = UntaggedReader._inside
            return start + self._is_doubled
        if self._is_doubled and text[start] == "}":
            return self._skip(start)
        if self._closing and self._calls and text.startswith(self._closing, start):
            self._next = UntaggedReader._opening
            return start + len(self._closing)
        may_close = self._closing and self._calls and self._closing.startswith(text[start:])
        return start if may_close else self._reject(start)

    def _inside(self, text: str, start: int) -> int:
        assert self._object is not None, "it was begun"
        end = self._object.read(text, start)
        if self._object.stage is Stage.REJECTED:
            return self._reject(end)
        if self._object.stage is Stage.ENDED:
            events = self._own.take()
            name = next(event.name for event in events if isinstance(event, CallStart))
            arguments = "".join(event.text for event in events if isinstance(event, ArgumentsDelta))
            if not self._tools.accepts(name, arguments):
                return self._reject(end)
            self._calls.append(_Call(name, arguments))
            self._next = UntaggedReader._objects if self._closing else UntaggedReader._opening
        return end

    def _skip(self, start: int) -> int:
        """Consume the bracket that closes a doubled one."""
        self._is_doubled = False
        return start + 1

    def _reject(self, end: int) -> int:
        self.stage = Stage.REJECTED
        return end
