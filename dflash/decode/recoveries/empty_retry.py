"""Nothing came: try once more, without guesses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash.decode.drafting.drafter import Nothing
from dflash.decode.recoveries.base import DONE, HOLD, Restart, Verdict

if TYPE_CHECKING:
    from dflash.decode.verify import Accepted
    from dflash.decode.view import RecoveryView


@dataclass(frozen=True)
class EmptyRetry:
    """Write a text once more, plain, if with guesses it ended before anything could be seen of it.

    What was produced is held back until there is a token to be seen (see `SpecialTokens.silent`), so nothing is ever taken
    back.

    Parameters
    ----------
    patience : int
        So many tokens that can't be seen are handed on all the same.
    """

    patience: int = 64

    def start(self, session: RecoveryView) -> _EmptyRetryState | None:
        """Plain decoding has nothing to be tried again."""
        return None if type(session.drafter) is Nothing else _EmptyRetryState(self.patience, session)


class _EmptyRetryState:
    name, restarts = "EmptyRetry", True

    def __init__(self, patience: int, session: RecoveryView) -> None:
        self._patience = patience
        self._silent = session.special_tokens.silent | session.eos

    def check_step(self, session: RecoveryView, accepted: Accepted) -> Verdict:
        n = session.n_tokens + len(accepted.tokens)
        if type(session.drafter) is Nothing or not self._silent.issuperset(accepted.tokens):
            return DONE
        if accepted.finish is None and n < self._patience:
            return HOLD
        if accepted.finish == "stop" and (accepted.drafted or any(step.drafted for step in session.held_steps)):
            return Restart(f"it ended after {n} tokens of which none can be seen: written once more without guesses")
        return DONE
