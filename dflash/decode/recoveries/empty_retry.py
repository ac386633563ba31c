"""Retry an empty output, without an end before its first visible token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dflash.decode.recoveries.base import DONE, HOLD, PASS, Restart, Verdict
from dflash.decode.recoveries.min_tokens import NoEnd
from dflash.decode.registry.recoveries import register

if TYPE_CHECKING:
    from dflash.decode.verify import Accepted
    from dflash.decode.view import RecoveryView


@register("empty")
@dataclass(frozen=True)
class EmptyRetry:
    """Restart a session once, with plain decoding, if the model ended it before any visible token.

    In the second try, end tokens and control tokens (see `SpecialTokens.control`) are masked up to the first visible token.
    Tokens are held back until one is visible (see `SpecialTokens.silent`), so no emitted token is ever withdrawn.

    Parameters
    ----------
    patience : int
        Number of invisible tokens after which they are emitted and no retry is made, or nothing is masked any more.
    """

    patience: int = 64

    def start(self, session: RecoveryView) -> _EmptyRetryState:
        """Return the state of the first try."""
        return _EmptyRetryState(self.patience, session)


class _EmptyRetryState:
    """The first try, up to its first visible token."""

    name, restarts = "EmptyRetry", True

    def __init__(self, patience: int, session: RecoveryView) -> None:
        self._patience = patience
        self._silent = session.special_tokens.silent | session.eos

    def check_step(self, session: RecoveryView, accepted: Accepted) -> Verdict:
        n = session.n_tokens + len(accepted.tokens)
        if not self._silent.issuperset(accepted.tokens):
            return DONE
        if accepted.finish is None and n < self._patience:
            return HOLD
        if accepted.finish == "stop" and accepted.tokens[-1] in session.eos:
            second_try = _SecondTryState(self._patience, session)
            return Restart(f"it ended after {n} tokens, none of them visible: decoded once more", second_try)
        return DONE


class _SecondTryState:
    """The second try, up to its first visible token: masks what would end it, position by position."""

    name, restarts = "EmptyRetry", False

    def __init__(self, patience: int, session: RecoveryView) -> None:
        special_tokens = session.special_tokens
        self._patience, self._silent = patience, special_tokens.silent
        self._no_end = NoEnd(1, np.array(sorted(special_tokens.control | session.eos)))
        session.sampler.add(self._no_end)

    def check_step(self, session: RecoveryView, accepted: Accepted) -> Verdict:
        n = session.n_tokens + len(accepted.tokens)
        if accepted.finish is None and self._silent.issuperset(accepted.tokens) and n < self._patience:
            self._no_end.n = n + 1
            return PASS
        session.sampler.remove(self._no_end)
        return DONE
