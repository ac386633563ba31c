"""End an output that calls a tool inside its reasoning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash.decode.recoveries.base import PASS, Cut, Verdict
from dflash.decode.recoveries.reasoning import ReasoningTracker
from dflash.decode.registry.recoveries import register

if TYPE_CHECKING:
    from dflash.decode.verify import Accepted
    from dflash.decode.view import RecoveryView


@register("think-leak")
@dataclass(frozen=True)
class ThinkLeak:
    """End a session with the reason ``"length"`` before a token that opens a tool call inside reasoning. Acts once.

    The opening token is dropped, so no client receives a call that the model may only have thought about.
    """

    def start(self, session: RecoveryView) -> _ThinkLeakState | None:
        """Return None if the model has no special tokens for reasoning or for tool calls."""
        special_tokens = session.special_tokens
        if special_tokens.think is None or special_tokens.call is None:
            return None
        return _ThinkLeakState(session, special_tokens.call[0])


class _ThinkLeakState:
    """Outside or inside reasoning; inside, a token that opens a tool call ends the session."""

    name, restarts = "ThinkLeak", False

    def __init__(self, session: RecoveryView, opens: int) -> None:
        self._reasoning, self._opens = ReasoningTracker(session), opens

    def check_step(self, session: RecoveryView, accepted: Accepted) -> Verdict:
        reasoning = self._reasoning
        reasoning.catch_up(session)
        for i, token in enumerate(accepted.tokens):
            if reasoning.is_open and token == self._opens:
                return Cut(i, "length", f"a tool call was opened inside reasoning after {reasoning.n_tokens} tokens")
            reasoning.feed(token)
        return PASS
