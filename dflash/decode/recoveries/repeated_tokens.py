"""Detector of equal tokens and of n-grams that repeat at the end of an output."""

import numpy as np


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
