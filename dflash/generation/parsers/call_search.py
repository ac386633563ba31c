"""Search for what opens a tool call, in a text that arrives in parts."""

import re

from dflash.generation.parsers.tags import TagSearch, partial

_BLANK = re.compile(r"[ \t\r\n]*")


class CallSearch:
    """Search for tags anywhere, and for texts that count at the start of a line or of the message only.

    tags, line_tags, first_tags: what is searched for; see `ToolFormat`.
    newline: a line break before one of `tags` belongs to it.
    """

    def __init__(
        self,
        tags: tuple[str, ...],
        line_tags: tuple[str, ...] = (),
        first_tags: tuple[str, ...] = (),
        *,
        newline: bool = False,
    ) -> None:
        self._tags = TagSearch(*tags, newline=newline, line_tags=line_tags)
        line, first = ("|".join(map(re.escape, each)) or "(?!)" for each in (line_tags, (*line_tags, *first_tags)))
        self._line, self._first = re.compile(line), re.compile(first)
        self._begun = re.compile(rf"(?:{'|'.join(partial(tag) for tag in line_tags if len(tag) > 1) or '(?!)'})\Z")

    def find(self, text: str, start: int, *, line_start: bool, is_first: bool) -> re.Match[str] | None:
        """Return the first tag at or after `start`, which is at the start of a line or of the message, or is not."""
        found = self._line.match(text, start) if line_start else None
        if found is None and is_first:
            blank = _BLANK.match(text, start)
            found = self._first.match(text, start if blank is None else blank.end())
        return self._tags.find(text, start) if found is None else found

    def held(self, text: str, start: int, *, line_start: bool) -> int:
        """Return the position from which the end of the text may be the start of a tag; the length of the text if none."""
        if line_start and self._begun.match(text, start) is not None:
            return start
        return self._tags.held(text, start)
