"""The protocol of a recovery, and its verdicts about a step before it is emitted."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from dflash.decode.verify import Accepted
from dflash.decode.view import RecoveryView


class Signal(Enum):
    """Verdicts without details."""

    PASS = "pass"
    """Accept the step."""
    HOLD = "hold"
    """Accept the step, but do not emit tokens yet."""
    DONE = "done"
    """Accept the step and remove this recovery, even if the session is restarted."""


PASS, HOLD, DONE = Signal


class Cut(NamedTuple):
    """Accept the first `n` of the new tokens and end the session with the reason ``"length"`` or ``"stop"``."""

    n: int
    finish: str
    reason: str


class Inject(NamedTuple):
    """Accept the first `n` of the new tokens, then inject `tokens` and continue with plain decoding."""

    n: int
    tokens: tuple[int, ...]
    reason: str


class Restart(NamedTuple):
    """Drop all output tokens and decode again with plain decoding. Allowed only if no token was emitted.

    The state `then` takes the place of the one that returned this verdict, which is removed.
    """

    reason: str
    then: RecoveryState | None = None


Verdict = Signal | Cut | Inject | Restart


class RecoveryState(Protocol):
    """State of a recovery for one session.

    Attributes
    ----------
    name : str
        Name of the recovery.
    restarts : bool
        True if it may still return `Restart`: then the state at the end of the prompt is saved.
    """

    name: str
    restarts: bool

    def check_step(self, session: RecoveryView, accepted: Accepted) -> Verdict:
        """Return a verdict about a step.

        Called in the engine's thread once for each step that decodes, after `verify` and before the tokens are appended.
        `accepted` is the result of `verify`, shortened by the recoveries before this one. Later recoveries and the observer
        may shorten it further, so a recovery that counts tokens must compare its count with ``session.n_tokens``.
        """


class Recovery(Protocol):
    """Changes the output of sessions that go wrong, a bounded number of times each. Holds settings, no request."""

    def start(self, session: RecoveryView) -> RecoveryState | None:
        """Return the state for a session, or None if there is nothing to check.

        Called in the engine's thread once, when the session was admitted and before its first step. It may add processors
        to ``session.sampler``.
        """
