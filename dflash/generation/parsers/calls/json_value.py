"""Search for the end of a JSON value in a text that arrives in parts."""

import re
from functools import cache

from dflash.generation.parsers.tags import partial

_PLAIN = r'[^"\[\]{}<]'
_STRING = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_OPEN, _CLOSE = re.compile(r"[\[{]+"), re.compile(r"[\]}]+")


class JSONValue:
    """Reader of one value. Brackets and quotes alone are read: what the model wrote is neither checked nor mended.

    closing: tag that begins with ``<`` and ends the value outside strings; empty if there is none.
    ended: the value is complete.
    in_string: the text that follows continues a string.
    """

    def __init__(self, closing: str = "") -> None:
        self._inside, self._scalar = _patterns(closing)
        self._closes = bool(closing)
        self.ended = self.in_string = False
        self._depth = 0
        self._is_scalar = False

    def read(self, text: str, start: int) -> int:
        """Return the position to which `text` from `start` belongs to the value.

        Stops at the end of the value, and outside strings before the closing tag or the start of it. Holds back a backslash
        at the end of the text.
        """
        end, length = start, len(text)
        while end < length and not self.ended:
            if self.in_string:
                end = _end(_STRING, text, end)
                if end == length or text[end] == "\\":
                    return end
                self.in_string, end = False, end + 1
                self.ended = not self._depth
                continue
            if self._depth:
                end = _end(self._inside, text, end)
            elif self._is_scalar:
                end = _end(self._scalar, text, end)
                self.ended = end < length and not self._may_close(text[end])
            if end == length or self.ended or self._may_close(text[end]):
                return end
            if text[end] == '"':
                self.in_string, end = True, end + 1
            elif text[end] in "[{":
                run = _end(_OPEN, text, end)
                self._depth, end = self._depth + run - end, run
            elif self._depth:
                n = min(self._depth, _end(_CLOSE, text, end) - end)
                self._depth, end = self._depth - n, end + n
                self.ended = not self._depth
            else:
                self._is_scalar = True
        return end

    def _may_close(self, character: str) -> bool:
        return self._closes and character == "<"


@cache
def _patterns(closing: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return expressions for text inside brackets, and for a scalar, up to the closing tag or the start of it."""
    angle = rf"<(?!{closing[1:]}|\Z|(?:{partial(closing[1:])})\Z)" if closing else "<"
    # short strings and flat brackets are only consumed at once for speed
    inside = rf'(?:{_PLAIN}++|{angle}|"[^"\\]*+"|\[{_PLAIN}*+\]|\{{{_PLAIN}*+\}})*+'
    return re.compile(inside), re.compile(rf"(?:[^,\]}}<\s]|{angle})*+")


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Return the end of the match of a pattern that matches everywhere."""
    found = pattern.match(text, start)
    assert found is not None
    return found.end()
