"""Let the recoveries of a session check a step."""

from dataclasses import replace
from typing import NamedTuple

from dflash.decode.recoveries.base import DONE, HOLD, Inject, Restart, Signal
from dflash.decode.recoveries.intervention import Intervention
from dflash.decode.recoveries.state_check import checked_action
from dflash.decode.session import Session
from dflash.decode.verify import Accepted
from dflash.errors import DFlashError


class Decision(NamedTuple):
    """Result of all recoveries for a step: accepted tokens, and whether to hold them back or to restart the session."""

    accepted: Accepted
    hold: bool = False
    restart: bool = False


def apply_recoveries(session: Session, accepted: Accepted) -> Decision:
    """Pass a step to the recoveries of a session, the innermost first; each sees the tokens that those before it left."""
    if accepted.injected:
        session.forced_ids = session.forced_ids[accepted.injected :]
    hold = False
    inject: tuple[int, ...] | None = None
    done: list[Intervention] = []
    for recovery_state in tuple(session.recovery_states):
        verdict = recovery_state.check_step(session, accepted)
        if isinstance(verdict, Signal):
            hold |= verdict is HOLD
            if verdict is DONE:
                session.recovery_states.remove(recovery_state)
            continue
        verdict = checked_action(recovery_state, verdict)
        action = type(verdict).__name__.lower()
        n_steps = len(session.steps) + len(session.held_steps)
        intervention = Intervention(n_steps, recovery_state.name, action, verdict.reason)
        if isinstance(verdict, Inject) and not _is_legal(session, verdict, accepted):
            skipped = replace(intervention, action="skip", reason=f"{verdict.reason}; skipped, since the grammar refuses it")
            session.interventions.append(skipped)
            continue
        if isinstance(verdict, Restart):
            if session.has_emitted:
                raise DFlashError(f"{recovery_state.name}: cannot restart after tokens were emitted")
            at = session.recovery_states.index(recovery_state)
            session.recovery_states[at : at + 1] = [] if verdict.then is None else [verdict.then]
            session.interventions.append(intervention)
            return Decision(accepted.cut(0), restart=True)
        done.append(intervention)
        inject = verdict.tokens if isinstance(verdict, Inject) else None
        accepted = accepted.cut(verdict.n, None if isinstance(verdict, Inject) else verdict.finish)
    # a later cut replaces the action of an earlier recovery
    session.interventions += done[-1:]
    if inject:
        session.force(inject)
    if session.prompt_snapshot is not None and not any(each.restarts for each in session.recovery_states):
        session.discard_prompt_snapshot()
    return Decision(accepted, hold and accepted.finish is None)


def _is_legal(session: Session, verdict: Inject, accepted: Accepted) -> bool:
    return session.grammar is None or session.grammar.allows([*accepted.tokens[: verdict.n], *verdict.tokens])
