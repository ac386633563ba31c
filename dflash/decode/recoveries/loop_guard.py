"""A text that goes round in circles, and a tool call that never ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dflash.decode.recoveries.base import PASS, Cut, Verdict
from dflash.errors import RequestError

if TYPE_CHECKING:
    from dflash.decode.verify import Accepted
    from dflash.decode.view import RecoveryView

MAX_PERIOD = 4096


@dataclass(frozen=True)
class LoopGuard:
    """End a text, as if it were long enough, with the very token that makes it a loop; only what was produced counts.

    Parameters
    ----------
    same : int
        The same token so many times in a row; 0 for any number.
    min_period, max_period : int
        Lengths of a run of tokens that may not be repeated; a `max_period` of 0 lets all be repeated.
    count : int
        How often such a run stands at the end of the text, one right after the other, when it is a loop.
    body : int
        A tool call ends the text when so many tokens of it have come and it is still open; 0 for any number.
    """

    same: int = 64
    min_period: int = 16
    max_period: int = 256
    count: int = 3
    body: int = 0

    def __post_init__(self) -> None:
        if self.same < 0 or self.same == 1:
            raise RequestError(f"same: must be 0 or at least 2, got {self.same}")
        if self.max_period and not 1 <= self.min_period <= self.max_period <= MAX_PERIOD:
            raise RequestError(
                f"periods: must be 1 to {MAX_PERIOD}, the least first, got {self.min_period} and {self.max_period}"
            )
        if self.count < 2:
            raise RequestError(f"count: must be at least 2, got {self.count}")
        if self.body < 0:
            raise RequestError(f"body: must be 0 or more, got {self.body}")

    def start(self, session: RecoveryView) -> _LoopGuardState:
        """Begin with an empty text."""
        return _LoopGuardState(self, session.special_tokens.call)


class _LoopGuardState:
    name, restarts = "LoopGuard", False

    def __init__(self, guard: LoopGuard, call: tuple[int, int] | None) -> None:
        self._guard, self._call = guard, call
        self._n = 0
        self._begin()

    def check_step(self, session: RecoveryView, accepted: Accepted) -> Verdict:
        if self._n != session.n_tokens:
            self._begin()
            for token in session.output_ids:
                self._feed(token)
        for i, token in enumerate(accepted.tokens, 1):
            reason = self._feed(token)
            if reason:
                return Cut(i, "length", reason)
        return PASS

    def _begin(self) -> None:
        guard = self._guard
        self._n = self._row = 0
        self._open: int | None = None
        # runs[i]: how many tokens up to the last one equal the one min_period + i before
        self._runs = np.zeros(guard.max_period - guard.min_period + 1 if guard.max_period else 0, np.int64)
        self._needed = np.arange(guard.min_period, guard.min_period + len(self._runs)) * (guard.count - 1)
        self._text = np.full(4 * max(guard.max_period, 1), -1, np.int64)
        self._end = guard.max_period

    def _feed(self, token: int) -> str:
        """Go on by a token; what is wrong with the text then, or nothing."""
        self._n += 1
        guard = self._guard
        return self._repeated(token, guard.same) or self._circle(token) or self._endless(token, guard.body)

    def _repeated(self, token: int, most: int) -> str:
        self._row = self._row + 1 if self._text[self._end - 1] == token or self._row == 0 else 1
        self._push(token)
        return f"token {token} came {self._row} times in a row" if most and self._row >= most else ""

    def _circle(self, token: int) -> str:
        if not len(self._runs):
            return ""
        guard, last = self._guard, self._end - 1
        above = self._text[last - guard.max_period : last - guard.min_period + 1][::-1]
        self._runs = np.where(above == token, self._runs + 1, 0)
        found = np.flatnonzero(self._runs >= self._needed)
        return f"the last {guard.min_period + found[0]} tokens came {guard.count} times" if len(found) else ""

    def _endless(self, token: int, most: int) -> str:
        if self._call is None or not most:
            return ""
        if token in self._call:
            self._open = 0 if token == self._call[0] else None
        elif self._open is not None:
            self._open += 1
            if self._open >= most:
                return f"a tool call was still open after {most} tokens"
        return ""

    def _push(self, token: int) -> None:
        """Keep the last tokens, as many as the longest period, in one piece."""
        if self._end == len(self._text):
            keep = self._guard.max_period
            self._text[:keep] = self._text[len(self._text) - keep :]
            self._end = keep
        self._text[self._end] = token
        self._end += 1
