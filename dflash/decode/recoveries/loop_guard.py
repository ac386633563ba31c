"""End outputs that repeat themselves, and tool calls that do not end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dflash.decode.recoveries.base import PASS, Cut, Verdict
from dflash.decode.registry.recoveries import Option, RequestField, RequestFields, register
from dflash.errors import RequestError

if TYPE_CHECKING:
    from dflash.decode.verify import Accepted
    from dflash.decode.view import RecoveryView

MAX_PERIOD = 4096
"""Largest period in tokens; bounds the work for each token."""

MAX_COUNT = 1000
"""Maximum of ``repetition_detection.min_count``."""


def _from_request(fields: RequestFields) -> LoopGuard | None:
    """Read vLLM's field ``repetition_detection``."""
    repetition = fields.object("repetition_detection")
    if repetition is None:
        return None
    longest = repetition.integer("max_pattern_size", 0, MAX_PERIOD, 0)
    shortest = repetition.integer("min_pattern_size", 0, max(longest, 1), 1)
    count = repetition.integer("min_count", 2, MAX_COUNT, 3)
    return LoopGuard(same=0, min_period=max(shortest, 1), max_period=longest, count=count) if longest else None


@register("loop", Option("BODY", "body"), field=RequestField("repetition_detection", _from_request))
@dataclass(frozen=True)
class LoopGuard:
    """End a session with the reason ``"length"`` at the token that completes a loop. Only output tokens count.

    Parameters
    ----------
    same : int
        Most consecutive equal tokens, at which the session ends; 0 for no bound.
    min_period, max_period : int
        Lengths of repeated n-grams that count as a loop; a `max_period` of 0 turns this off.
    count : int
        Number of consecutive repetitions at the end of the output that make a loop.
    body : int
        Most tokens of an open tool call, at which the session ends; 0 for no bound.
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
        """Return the state for an empty output."""
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
        # runs[i]: number of last tokens, each equal to the token min_period + i before it
        self._runs = np.zeros(guard.max_period - guard.min_period + 1 if guard.max_period else 0, np.int64)
        self._needed = np.arange(guard.min_period, guard.min_period + len(self._runs)) * (guard.count - 1)
        self._last_ids = np.full(4 * max(guard.max_period, 1), -1, np.int64)
        self._end = guard.max_period

    def _feed(self, token: int) -> str:
        """Add a token; return the reason to end the session, or an empty string."""
        self._n += 1
        guard = self._guard
        return self._repeated(token, guard.same) or self._loop(token) or self._long_call(token, guard.body)

    def _repeated(self, token: int, most: int) -> str:
        self._row = self._row + 1 if self._last_ids[self._end - 1] == token or self._row == 0 else 1
        self._push(token)
        return f"token {token} came {self._row} times in a row" if most and self._row >= most else ""

    def _loop(self, token: int) -> str:
        if not len(self._runs):
            return ""
        guard, last = self._guard, self._end - 1
        above = self._last_ids[last - guard.max_period : last - guard.min_period + 1][::-1]
        self._runs = np.where(above == token, self._runs + 1, 0)
        found = np.flatnonzero(self._runs >= self._needed)
        return f"the last {guard.min_period + found[0]} tokens came {guard.count} times" if len(found) else ""

    def _long_call(self, token: int, most: int) -> str:
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
        """Append a token to the buffer of the last tokens, which stays contiguous for the longest period."""
        if self._end == len(self._last_ids):
            keep = self._guard.max_period
            self._last_ids[:keep] = self._last_ids[len(self._last_ids) - keep :]
            self._end = keep
        self._last_ids[self._end] = token
        self._end += 1
