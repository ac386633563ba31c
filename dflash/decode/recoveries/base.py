"""Watching over a text: what a recovery may do about a step before it is handed on."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from dflash.decode.verify import Accepted
from dflash.decode.view import RecoveryView


class Signal(Enum):
    """Verdicts without details."""

    PASS = "pass"
    """Nothing is wrong."""
    HOLD = "hold"
    """Nothing is wrong yet, but what was produced so far must not be handed on."""
    DONE = "done"
    """Nothing is wrong, and nothing will be, even if the text is written once more: it need not be asked again."""


PASS, HOLD, DONE = Signal


class Cut(NamedTuple):
    """Keep the first `n` of the new tokens and end the text there, as ``"length"`` or ``"stop"``."""

    n: int
    finish: str
    reason: str


class Inject(NamedTuple):
    """Keep the first `n` of the new tokens and let `tokens` follow as if the target had chosen them; from there on plain."""

    n: int
    tokens: tuple[int, ...]
    reason: str


class Restart(NamedTuple):
    """Forget all that was produced, of which nothing was handed on, and write it again without guesses."""

    reason: str


Verdict = Signal | Cut | Inject | Restart


class RecoveryState(Protocol):
    """A recovery at work on one session.

    ``session.token_ids`` is the text before the step. Other recoveries may change what a step adds, so a watch with a memory
    has to look at what the text has become.

    Attributes
    ----------
    name : str
        Of the recovery.
    restarts : bool
        Whether it may yet say `Restart`: the place where the prompt ends is remembered for it.
    """

    name: str
    restarts: bool

    def check_step(self, session: RecoveryView, accepted: Accepted) -> Verdict:
        """Judge what `verify` found, or what those before it have left of that."""
        ...


class Recovery(Protocol):
    """Steps in where a text goes wrong, a bounded number of times. Holds settings, no request."""

    def start(self, session: RecoveryView) -> RecoveryState | None:
        """Begin with a session that is about to run; it may add rules to ``session.sampler``. None if nothing is to
        watch.
        """
        ...
