"""Detectors of lines, and of tokens, that are written again and again."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

import numpy as np

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


class RepeatedTokens:
    """Finds repetitions token by token, in time and memory that depend on the largest period alone.

    same: number of consecutive equal tokens to report; 0 for none.
    min_period, max_period: lengths of n-grams; a `max_period` of 0 turns them off.
    """

    def __init__(self, same: int, min_period: int, max_period: int, count: int) -> None:
        self._same, self._min_period, self._max_period, self._count = same, min_period, max_period, count
        self._row = 0
        # runs[i]: number of last tokens, each equal to the token min_period + i before it
        self._runs = np.zeros(max_period - min_period + 1 if max_period else 0, np.int64)
        self._needed = np.arange(min_period, min_period + len(self._runs)) * (count - 1)
        self._last_ids = np.full(4 * max(max_period, 1), -1, np.int64)
        self._end = max_period

    def feed(self, token: int) -> str:
        """Add a token; return the repetition that it completes, or an empty string."""
        return self._repeated(token) or self._loop(token)

    def _repeated(self, token: int) -> str:
        self._row = self._row + 1 if self._last_ids[self._end - 1] == token or self._row == 0 else 1
        self._push(token)
        return f"token {token} came {self._row} times in a row" if self._same and self._row >= self._same else ""

    def _loop(self, token: int) -> str:
        if not len(self._runs):
            return ""
        last = self._end - 1
        above = self._last_ids[last - self._max_period : last - self._min_period + 1][::-1]
        self._runs = np.where(above == token, self._runs + 1, 0)
        found = np.flatnonzero(self._runs >= self._needed)
        return f"the last {self._min_period + found[0]} tokens came {self._count} times" if len(found) else ""

    def _push(self, token: int) -> None:
        """Append a token to the buffer of the last tokens, which stays contiguous for the longest period."""
        if self._end == len(self._last_ids):
            keep = self._max_period
            self._last_ids[:keep] = self._last_ids[len(self._last_ids) - keep :]
            self._end = keep
        self._last_ids[self._end] = token
        self._end += 1
