"""Retry an empty output with plain decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash.decode.drafting.drafter import Nothing
from dflash.decode.recoveries.base import DONE, HOLD, Restart, Verdict
from dflash.decode.registry.recoveries import register

if TYPE_CHECKING:
    from dflash.decode.verify import Accepted
    from dflash.decode.view import RecoveryView


@register("empty")
@dataclass(frozen=True)
class EmptyRetry:
    """Restart a session once, with plain decoding, if it drafted tokens and ended before any visible token.

    Tokens are held back until one is visible (see `SpecialTokens.silent`), so no emitted token is ever withdrawn.

    Parameters
    ----------
    patience : int
        Number of invisible tokens after which they are emitted and no retry is made.
    """

    patience: int = 64

    def start(self, session: RecoveryView) -> _EmptyRetryState | None:
        """Return None for plain decoding, where a retry gives the same output."""
        return None if type(session.drafter) is Nothing else _EmptyRetryState(self.patience, session)


class _EmptyRetryState:
    name, restarts = "EmptyRetry", True

    def __init__(self, patience: int, session: RecoveryView) -> None:
        self._patience = patience
        self._silent = session.special_tokens.silent | session.stop_ids

    def check_step(self, session: RecoveryView, accepted: Accepted) -> Verdict:
        n = session.n_tokens + len(accepted.tokens)
        if type(session.drafter) is Nothing or not self._silent.issuperset(accepted.tokens):
            return DONE
        if accepted.finish is None and n < self._patience:
            return HOLD
        if accepted.finish == "stop" and (accepted.drafted or any(step.drafted for step in session.held_steps)):
            return Restart(f"it ended after {n} tokens, none of them visible: decoded once more without draft tokens")
        return DONE
