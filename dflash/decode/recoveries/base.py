"""Watching over a text: what a recovery may do about a step before it is handed on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dflash.errors import DFlashError

if TYPE_CHECKING:
    from dflash.decode.session import Session
    from dflash.decode.verify import Accepted


@dataclass(frozen=True, slots=True)
class Intervention:
    """A recovery changed something; as a text it is one sentence.

    Parameters
    ----------
    step : int
        Which of the session's steps it was.
    recovery : str
        Who did it, as ``"ToolStall"``.
    action : str
        ``"cut"``, ``"inject"``, ``"restart"`` or ``"mask"``.
    reason : str
        What it saw, and what it did about it.
    """

    step: int
    recovery: str
    action: str
    reason: str

    def __str__(self) -> str:
        return f"{self.recovery}: {self.reason}"


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

    def check_step(self, session: Session, accepted: Accepted) -> Verdict:
        """Judge what `verify` found, or what those before it have left of that."""
        ...


class Recovery(Protocol):
    """Steps in where a text goes wrong, a bounded number of times. Holds settings, no request."""

    def start(self, session: Session) -> RecoveryState | None:
        """Begin with a session that is about to run; it may add rules to ``session.sampler``. None if nothing is to
        watch.
        """
        ...


class Decision(NamedTuple):
    """What all watches together make of a step: what is kept, and whether it is held back or all is begun again."""

    accepted: Accepted
    hold: bool = False
    restart: bool = False


def apply_recoveries(session: Session, accepted: Accepted) -> Decision:
    """Let the watches of a session judge a step, the innermost first; each sees what those before it have left.

    Parameters
    ----------
    session : Session
        Its interventions are noted, and what is to be injected.
    accepted : Accepted
        From `verify`.

    Raises
    ------
    DFlashError
        If a watch wants to begin again what was handed on in part.
    """
    if accepted.injected:
        session.forced_ids = session.forced_ids[accepted.injected :]
    hold, inject, done = False, None, []
    for recovery_state in tuple(session.recovery_states):
        verdict = recovery_state.check_step(session, accepted)
        if isinstance(verdict, Signal):
            hold |= verdict is HOLD
            if verdict is DONE:
                session.recovery_states.remove(recovery_state)
            continue
        action = type(verdict).__name__.lower()
        intervention = Intervention(
            len(session.steps) + len(session.held_steps), recovery_state.name, action, verdict.reason
        )
        if isinstance(verdict, Restart):
            if session.has_emitted:
                raise DFlashError(f"{recovery_state.name} wants to begin again after tokens were handed on")
            session.recovery_states.remove(recovery_state)
            session.interventions.append(intervention)
            return Decision(accepted.cut(0), restart=True)
        done.append(intervention)
        inject = verdict.tokens if isinstance(verdict, Inject) else None
        accepted = accepted.cut(verdict.n, None if inject else verdict.finish)
    # a later cut undoes what an earlier watch did to the tokens behind it
    session.interventions += done[-1:]
    if inject:
        session.force(inject)
    if session.prompt_snapshot is not None and not any(
        recovery_state.restarts for recovery_state in session.recovery_states
    ):
        session.discard_prompt_snapshot()
    return Decision(accepted, hold and accepted.finish is None)
