"""Reader of a tool call that is written as a JSON object with a name and arguments."""

import json
import re

from dflash.generation.parsers.calls.json_value import JSONValue
from dflash.generation.parsers.events import EventSink
from dflash.generation.parsers.formats import Stage
from dflash.generation.parsers.offered import OfferedTools
from dflash.generation.parsers.tags import SPACE, TagSearch, beginnings

_BLANK = re.compile(r"[ \t\r\n]*")
_KEY = re.compile(r'"(?:[^"\\]|\\.){0,256}+"', re.DOTALL)
_KEY_START = re.compile(r'"(?:[^"\\]|\\.){0,256}+\\?', re.DOTALL)

_ARGUMENTS = "arguments", "parameters"

_MAX_KEYS = 16
"""Most keys of a call's object; two are needed."""


class ObjectForm:
    """Where the object of a call stands.

    *before: text before the opening bracket: tags, and `SPACE` between them.
    closing: tag that ends the call even if its object is not closed; empty if there is none.
    only: keys that the object may have; empty if others are ignored.
    is_block: the head shows that a call is meant, so that functions which were not offered are called, too.
    """

    def __init__(self, *before: str, closing: str = "", only: tuple[str, ...] = (), is_block: bool = True) -> None:
        self.closing, self.only, self.is_block = closing, only, is_block
        self.close = TagSearch(*([closing] if closing else []))
        whole = "".join(part if part is SPACE else re.escape(part) for part in before)
        self.head, self.head_start = re.compile(rf"{whole}\{{"), re.compile(beginnings(*before))
        self.n_opening = len(next((part for part in before if part is not SPACE), "{"))


class ObjectReader:
    """Reads the keys of the object in any order. The call starts when the name is known.

    The arguments are passed on as written. Their key is ``arguments`` or ``parameters``; the first one counts. A string that
    holds a JSON object stands for it.
    """

    def __init__(self, form: ObjectForm, tools: OfferedTools, sink: EventSink, *, in_reasoning: bool = False) -> None:
        self._form, self._tools, self._sink, self._in_reasoning = form, tools, sink, in_reasoning
        self.stage, self.is_block = Stage.HEAD, False
        self._next = ObjectReader._head
        self._raw: list[str] = []
        self._key, self._n_keys = "", 0
        self._value = JSONValue(form.closing)
        self._early: list[str] = []
        self._quoted: list[str] | None = None
        self._has_arguments = self._passes = False

    @property
    def written(self) -> str:
        """Text that was consumed before the call started or was rejected."""
        return "".join(self._raw)

    def read(self, text: str, start: int) -> int:
        """Consume text and return the position after it."""
        end, before = start, None
        while self.stage in (Stage.HEAD, Stage.BODY) and before != (end, self._next):
            before = end, self._next
            if self._next not in (ObjectReader._head, ObjectReader._in_value, ObjectReader._junk):
                blank = _BLANK.match(text, end)
                end = end if blank is None else blank.end()
            if end == len(text):
                break
            closing, in_text = self._form.closing, self._next is ObjectReader._head or self._value.in_string
            if closing and not in_text and closing.startswith(text[end : end + len(closing)]):
                self._close(whole=text.startswith(closing, end))  # else the start of the tag is held back
                break
            end = self._next(self, text, end)
        if self.stage in (Stage.HEAD, Stage.REJECTED):
            self._raw.append(text[start:end])
        return end

    def finish(self, rest: str, *, cut: bool) -> None:  # noqa: ARG002
        """Pass on the rest of arguments that the run has cut."""
        if self._next in (ObjectReader._in_value, ObjectReader._junk):
            self._pass(rest)
            self._pass_quoted()

    def settle(self, rest: str, *, cut: bool) -> bool:  # noqa: ARG002
        """Return True if the head of a call is no text: the run has cut it, and more would have made it a call."""
        return cut

    def _head(self, text: str, start: int) -> int:
        head = self._form.head.match(text, start)
        if head is not None:
            self._next = ObjectReader._before_key
            return head.end()
        if self._form.head_start.fullmatch(text, start) is None:
            self.stage = Stage.REJECTED
            return start + self._form.n_opening
        return start

    def _before_key(self, text: str, start: int) -> int:
        if text[start] == "}":
            return self._end(start)
        key, end = self._string(text, start)
        if key is None:
            return end
        self._key, self._n_keys, self._next = key, self._n_keys + 1, ObjectReader._before_colon
        is_known = not self._form.only or key in self._form.only
        return end if is_known and self._n_keys <= _MAX_KEYS else self._fail(end)

    def _before_colon(self, text: str, start: int) -> int:
        if text[start] != ":":
            return self._fail(start)
        self._next = ObjectReader._name if self._key == "name" and self.stage is Stage.HEAD else ObjectReader._before_value
        return start + 1

    def _name(self, text: str, start: int) -> int:
        name, end = self._string(text, start)
        if name is None:
            return end
        if not self._tools.may_call(name, in_block=self._form.is_block, in_reasoning=self._in_reasoning):
            return self._fail(end)
        self._next, self.stage = ObjectReader._after_value, Stage.BODY
        self._sink.start(name)
        self._sink.arguments("".join(self._early))
        return end

    def _before_value(self, text: str, start: int) -> int:
        if text[start] in ",:]}":
            return self._fail(start)
        self._passes = self._key in _ARGUMENTS and not self._has_arguments
        self._quoted = [] if self._passes and text[start] == '"' else None
        self._has_arguments = self._has_arguments or self._passes
        self._value, self._next = JSONValue(self._form.closing), ObjectReader._in_value
        return start

    def _in_value(self, text: str, start: int) -> int:
        end = self._value.read(text, start)
        self._pass(text[start:end])
        if self._value.ended:
            self._next = ObjectReader._after_value
            self._pass_quoted()
        return end

    def _after_value(self, text: str, start: int) -> int:
        if text[start] == "}":
            return self._end(start)
        if text[start] != ",":
            return self._fail(start)
        self._next = ObjectReader._before_key
        return start + 1

    def _junk(self, text: str, start: int) -> int:
        """Consume text that is not JSON. It takes the place of arguments if there are none, so that the caller sees it."""
        search = self._form.close
        tag = search.find(text, start)
        end = search.held(text, start) if tag is None else tag.start()
        self._pass(text[start:end])
        return end

    def _string(self, text: str, start: int) -> tuple[str | None, int]:
        """Return a string and its end; None if the string is incomplete or there is none."""
        whole = _KEY.match(text, start)
        if whole is None and _KEY_START.fullmatch(text, start):
            return None, start
        if whole is None:
            return None, self._fail(start)
        try:
            return json.loads(whole[0]), whole.end()
        except (TypeError, ValueError):
            return None, self._fail(start)

    def _pass(self, text: str) -> None:
        """Add text of a value or junk to the arguments if it belongs there."""
        if self._quoted is not None:
            self._quoted.append(text)
        elif self._passes and self.stage is Stage.HEAD:
            self._early.append(text)
        elif self._passes:
            self._sink.arguments(text)

    def _pass_quoted(self) -> None:
        """Add arguments that were written as a string: the object in it, or the string if it holds none."""
        if self._quoted is None:
            return
        text, self._quoted = "".join(self._quoted), None
        self._pass(_object_in(text) or text)

    def _fail(self, start: int) -> int:
        """Handle text that does not continue a call; a call that has started goes on to its closing tag."""
        if self.stage is Stage.HEAD:
            self.stage, self.is_block = Stage.REJECTED, self._form.is_block
        else:
            self._next, self._passes = ObjectReader._junk, not self._has_arguments
        return start

    def _end(self, start: int) -> int:
        """Handle the bracket that closes the object."""
        if self.stage is Stage.HEAD:
            return self._fail(start)
        if not self._has_arguments:
            self._sink.arguments("{}")
        self._sink.end()
        self.stage = Stage.ENDED
        return start + 1

    def _close(self, *, whole: bool) -> None:
        """Handle the closing tag before the end of the object."""
        if whole:
            self._pass_quoted()
        if whole and self.stage is Stage.HEAD:
            self.stage, self.is_block = Stage.REJECTED, self._form.is_block
        elif whole:
            self._sink.end()
            self.stage = Stage.ENDED


def _object_in(quoted: str) -> str | None:
    """Return the JSON text of an object that a JSON string holds; None if it holds something else."""
    try:
        text = json.loads(quoted)
        return text if isinstance(json.loads(text, parse_int=float), dict) else None
    except (TypeError, ValueError, RecursionError):
        return None
