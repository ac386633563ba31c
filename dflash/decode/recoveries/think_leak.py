"""End an output that calls a tool inside its reasoning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash.decode.output_part import OutputPart
from dflash.decode.recoveries.base import PASS, Cut, Verdict
from dflash.decode.recoveries.reasoning import ReasoningTracker
from dflash.decode.registry.recoveries import register

if TYPE_CHECKING:
    from dflash.decode.verify import Accepted
    from dflash.decode.view import RecoveryView


@register("think-leak")
@dataclass(frozen=True)
class ThinkLeak:
    """End a session with the reason ``"length"`` before the token that makes text in reasoning a tool call. Acts once.

    This token is dropped, so no client receives a call that the model may only have thought about. Text that merely holds
    ``<tool_call>`` does not end the session.
    """

    def start(self, session: RecoveryView) -> _ThinkLeakState | None:
        """Return None if the model has no special tokens for reasoning or for tool calls."""
        special_tokens = session.special_tokens
        if special_tokens.think is None or special_tokens.call is None:
            return None
        return _ThinkLeakState(session)


class _ThinkLeakState:
    """Outside or inside reasoning; inside, a token that completes the head of a tool call ends the session."""

    name, restarts = "ThinkLeak", False

    def __init__(self, session: RecoveryView) -> None:
        self._reasoning = ReasoningTracker(session)

    def check_step(self, session: RecoveryView, accepted: Accepted) -> Verdict:
        reasoning = self._reasoning
        reasoning.catch_up(session)
        for i, token in enumerate(accepted.tokens):
            reasons = reasoning.is_reasoning
            reasoning.feed(token)
            if reasons and reasoning.part is OutputPart.CALL:
                return Cut(i, "length", f"a tool call was opened inside reasoning after {session.n_tokens + i} tokens")
        return PASS
