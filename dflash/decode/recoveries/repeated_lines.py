"""Detector of a line that is written again and again."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash.decode.view import Detokenize

_MAX_KNOWN = 4096
"""Tokens whose text is remembered; an output seldom has more different ones."""


class RepeatedLines:
    """Counts equal lines among the last ones, in constant time for each token and memory for `window` lines.

    Lines are equal if their tokens are. Lines without a letter or a digit do not count: blank lines, brackets, rules.

    window: number of last lines that are compared; equal to `count`, the lines must follow each other.
    """

    def __init__(self, count: int, window: int, detokenize: Detokenize) -> None:
        self._count, self._window, self._detokenize = count, window, detokenize
        self._line, self._has_letters = 0, False
        self._last_lines: deque[int] = deque()
        self._counts: Counter[int] = Counter()
        self._known: dict[int, tuple[bool, bool]] = {}

    def feed(self, token: int) -> str:
        """Add a token; return the repetition that it completes, or an empty string."""
        has_break, has_letters = self._look(token)
        line, self._line = hash((self._line, token)), 0
        has_letters, self._has_letters = self._has_letters or has_letters, False
        if not has_break:
            self._line, self._has_letters = line, has_letters
            return ""
        return self._add(line) if has_letters else ""

    def _add(self, line: int) -> str:
        if len(self._last_lines) == self._window:
            oldest = self._last_lines.popleft()
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        self._last_lines.append(line)
        self._counts[line] += 1
        n = self._counts[line]
        return f"a line came {n} times among the last {len(self._last_lines)}" if n >= self._count else ""

    def _look(self, token: int) -> tuple[bool, bool]:
        """Return whether the text of a token has a line break, and whether it has a letter or a digit."""
        if token not in self._known:
            if len(self._known) == _MAX_KNOWN:
                self._known.clear()
            text = self._detokenize([token])
            self._known[token] = "\n" in text, any(map(str.isalnum, text))
        return self._known[token]
