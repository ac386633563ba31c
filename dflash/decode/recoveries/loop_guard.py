"""End outputs that repeat themselves: their tokens, lines or tool calls."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

from dflash.decode.recoveries.base import PASS, Cut, Verdict
from dflash.decode.recoveries.call_limits import CallLimits
from dflash.decode.recoveries.reasoning import ReasoningTracker
from dflash.decode.recoveries.repetitions import RepeatedLines, RepeatedTokens
from dflash.decode.registry.recoveries import Option, RequestField, RequestFields, register
from dflash.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dflash.decode.verify import Accepted
    from dflash.decode.view import RecoveryView

MAX_PERIOD = 4096
"""Largest period in tokens; bounds the work for each token."""

MAX_COUNT = 1000
"""Maximum of ``repetition_detection.min_count``."""

MAX_LINES = 4096
"""Most lines that are compared; bounds the memory."""

Detector = RepeatedTokens | RepeatedLines


def _from_request(fields: RequestFields) -> LoopGuard | None:
    """Read vLLM's field ``repetition_detection``."""
    repetition = fields.object("repetition_detection")
    if repetition is None:
        return None
    longest = repetition.integer("max_pattern_size", 0, MAX_PERIOD, 0)
    shortest = repetition.integer("min_pattern_size", 0, max(longest, 1), 1)
    count = repetition.integer("min_count", 2, MAX_COUNT, 3)
    if not longest:
        return None
    return LoopGuard(same=0, min_period=max(shortest, 1), max_period=longest, count=count, lines=0, calls=0)


@register("loop", Option("BODY", "body"), field=RequestField("repetition_detection", _from_request))
@dataclass(frozen=True)
class LoopGuard:
    """End a session with the reason ``"length"`` at the token that completes a loop. Only output tokens count.

    Tokens that a grammar restricts do not count, and counting begins anew after them.

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
    lines : int
        Equal lines among the last `line_window`, at which the session ends; 0 for no bound. Lines without a letter or a
        digit do not count.
    line_window : int
        Number of last lines that are compared; at most `MAX_LINES`.
    calls : int
        Calls of the same tool with the same arguments, at which the session ends; 0 for no bound.
    prose : int
        Tokens of text after a tool call and before the next, at which the session ends; 0 for no bound.
    """

    same: int = 64
    min_period: int = 16
    max_period: int = 256
    count: int = 3
    body: int = 0
    lines: int = 32
    line_window: int = 64
    calls: int = 5
    prose: int = 0

    def __post_init__(self) -> None:
        if self.max_period and not 1 <= self.min_period <= self.max_period <= MAX_PERIOD:
            raise RequestError(
                f"periods: must be 1 to {MAX_PERIOD}, the least first, got {self.min_period} and {self.max_period}"
            )
        if self.count < 2:
            raise RequestError(f"count: must be at least 2, got {self.count}")
        for name in ("same", "lines", "calls"):
            if getattr(self, name) < 0 or getattr(self, name) == 1:
                raise RequestError(f"{name}: must be 0 or at least 2, got {getattr(self, name)}")
        for name in ("body", "prose"):
            if getattr(self, name) < 0:
                raise RequestError(f"{name}: must be 0 or more, got {getattr(self, name)}")
        if not self.lines <= self.line_window <= MAX_LINES:
            raise RequestError(f"line_window: must be {self.lines} to {MAX_LINES}, got {self.line_window}")

    def start(self, session: RecoveryView) -> _LoopGuardState:
        """Return the state for an empty output."""
        return _LoopGuardState(self, session)


class _LoopGuardState:
    """Counting, or asleep where a grammar restricts the output."""

    name, restarts = "LoopGuard", False

    def __init__(self, guard: LoopGuard, session: RecoveryView) -> None:
        self._guard = guard
        self._n = self._n_asleep = 0
        self._detectors: list[Detector] | None = None
        self._limits: CallLimits | None = None
        self._follows_calls = session.special_tokens.call is not None and bool(guard.body or guard.calls or guard.prose)
        self._parts = ReasoningTracker(session) if self._follows_calls else None

    def check_step(self, session: RecoveryView, accepted: Accepted) -> Verdict:
        if self._n != session.n_tokens:
            self._n = self._n_asleep = min(self._n_asleep, session.n_tokens)
            self._detectors = None
            self._parts = ReasoningTracker(session) if self._follows_calls else None
            for i, token in enumerate(session.output_ids):
                if i < self._n_asleep:
                    self._skip(token)
                else:
                    self._feed(session, token)
        asleep = repeat(False) if session.grammar is None else session.grammar.restricts(accepted.tokens)
        for i, (token, sleeps) in enumerate(zip(accepted.tokens, asleep, strict=False), 1):
            if token in session.stop_ids:
                break
            if sleeps:
                self._n = self._n_asleep = session.n_tokens + i
                self._detectors = None
                self._skip(token)
            elif reason := self._feed(session, token):
                return Cut(i, "length", reason)
        return PASS

    def _skip(self, token: int) -> None:
        """Follow a token that does not count."""
        if self._parts is not None:
            self._parts.feed(token)

    def _feed(self, session: RecoveryView, token: int) -> str:
        """Add a token; return the reason to end the session, or an empty string."""
        if self._detectors is None:
            self._detectors = list(self._new_detectors(session))
            self._limits = CallLimits(self._guard.body, self._guard.calls, self._guard.prose)
        self._n += 1
        reasons = [detector.feed(token) for detector in self._detectors]
        if self._parts is not None and self._limits is not None:
            before = self._parts.part
            self._parts.feed(token)
            reasons.append(self._limits.feed(token, before, self._parts.part))
        return next(filter(None, reasons), "")

    def _new_detectors(self, session: RecoveryView) -> Iterator[Detector]:
        guard = self._guard
        if guard.same or guard.max_period:
            yield RepeatedTokens(guard.same, guard.min_period, guard.max_period, guard.count)
        if guard.lines and session.detokenize is not None:
            yield RepeatedLines(guard.lines, guard.line_window, session.detokenize)
