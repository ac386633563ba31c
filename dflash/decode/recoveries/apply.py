"""Let the recoveries of a session check a step."""

from typing import NamedTuple

from dflash.decode.recoveries.base import DONE, HOLD, Inject, Restart, Signal
from dflash.decode.recoveries.intervention import Intervention
from dflash.decode.session import Session
from dflash.decode.verify import Accepted
from dflash.errors import DFlashError


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
