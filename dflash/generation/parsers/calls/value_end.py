"""Where the value of a parameter ends, in calls written as XML. Parser and call grammar are both made from this.

A value is what stands between ``<parameter=KEY>`` and its end, without the line break on each side. It ends

* at ``</parameter>`` at the start of a line, if the next parameter, ``</function>`` or ``</tool_call>`` follows, or the
  output ends there;
* where that is missing: at the next parameter of the function at the start of a line, or at ``</function>`` at the start of
  a line, if ``</tool_call>`` follows or the output ends there. A ``</parameter>`` at the end of the last line is dropped.

No parameter begins twice. So a value may hold ``</parameter>``, ``</function>`` and ``<parameter=KEY>`` anywhere else.
Where a value begins on the line of its tag, its ``</parameter>`` and ``</function>`` may stand anywhere in a line.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from dflash.generation.parsers.tags import NAME, SPACE, beginnings

PARAMETER, CLOSE, FUNCTION_END, CALL_END = "<parameter=", "</parameter>", "</function>", "</tool_call>"

_MAX_HELD = 420
"""Most characters of the start of an end: its tags, a name (256) and the white space between them (64)."""

_CALL_ENDS = FUNCTION_END, SPACE, CALL_END
_BEGINS = PARAMETER, NAME, ">"


class End(NamedTuple):
    """End of a value: the position after its text, and the one from which the call continues."""

    text: int
    call: int


class ValueEnd:
    """Search for the end of a value in a text that arrives in parts. The text begins after the tag of the parameter.

    block: the text begins with a line break, which is a part of the search.
    """

    def __init__(self, *, block: bool) -> None:
        line = r"\n" if block else r"\n?"
        call_ends = "".join(part if part is SPACE else re.escape(part) for part in _CALL_ENDS)
        closed = f"(?P<close>{line}{CLOSE}){SPACE}(?:{PARAMETER}(?P<next>{NAME})>|{FUNCTION_END}|{CALL_END})"
        stray = rf"(?P<stray>{CLOSE}){SPACE}(?<=\n)(?:{PARAMETER}(?P<after>{NAME})>|{call_ends})"
        unclosed = rf"\n{PARAMETER}(?P<open>{NAME})>|{line}{call_ends}"
        self._whole = re.compile(f"{closed}|{stray}|{unclosed}")
        starts = [(CLOSE, SPACE, *_BEGINS), (CLOSE, SPACE, *_CALL_ENDS), (CLOSE, SPACE, CALL_END), _BEGINS, _CALL_ENDS]
        partial = [rf"\n{beginnings(*parts)}" for parts in starts]
        partial += [f"(?=<){beginnings(*parts)}" for parts in (starts[:2] if block else starts)]
        self._partial = re.compile(rf"(?:{'|'.join(partial)})\Z")
        last = "|".join(beginnings(part) for part in (PARAMETER, FUNCTION_END, CALL_END))
        named = f"{PARAMETER}{NAME}"
        self._closed = re.compile(rf"{line}{CLOSE}{SPACE}(?:{named}|{last})")
        self._ended = re.compile(rf"(?:{CLOSE}{SPACE}(?<=\n)|{line}){FUNCTION_END}{SPACE}{beginnings(CALL_END)}")

    def find(self, text: str, start: int, is_next: Callable[[str, bool], bool]) -> End | None:
        """Return the first end at or after `start`; None if there is none yet.

        is_next: ``is_next(key, closed)`` returns True if a parameter of this name may begin after the value, which was
            closed by a tag of its own or not.
        """
        while (found := self._whole.search(text, start)) is not None:
            key = found["next"] or found["after"] or found["open"]
            if key is None or is_next(key, found["next"] is not None):
                tag = found["close"] or found["stray"]
                after = found.start() + (len(tag) if tag else text.startswith("\n", found.start()))
                return End(found.start(), after)
            start = found.start() + 1
        return None

    def held(self, text: str, start: int) -> int:
        """Return the position from which the end of the text may be the start of an end; its length if none."""
        found = self._partial.search(text, max(start, len(text) - _MAX_HELD))
        return len(text) if found is None else found.start()

    def is_closed(self, rest: str) -> bool:
        """Return True if the last text of an output, which was held back, ends the value."""
        return self._closed.fullmatch(rest) is not None

    def is_ended(self, rest: str) -> bool:
        """Return True if the last text of an output, which was held back, ends the call."""
        return self._ended.fullmatch(rest) is not None


@cache
def value_end(*, block: bool) -> ValueEnd:
    """Return the search for values that begin on a line of their own, or on the line of their tag."""
    return ValueEnd(block=block)
