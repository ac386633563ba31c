"""What is handed on, and when: a step as it is found, or all that was held back at once."""

from dflash.decode.recoveries.apply import Decision
from dflash.decode.session import Session
from dflash.decode.verify import Accepted
from dflash.errors import DFlashError


def show(session: Session, decision: Decision) -> Accepted:
    """Let the observer see a step before it is text, and before that what was held back until now.

    Parameters
    ----------
    session : Session
        Where the observer wants less than was held back, its text ends there.
    decision : Decision
        What the watches made of the step.

    Returns
    -------
    Accepted
        What is left of the step.

    Raises
    ------
    DFlashError
        If the observer wants more than it was shown. What it raises passes through.
    """
    accepted = decision.accepted
    if session.observer is None or decision.hold or decision.restart:
        return accepted
    for i, step in enumerate(session.held_steps):
        n = _wanted(session, step.tokens)
        if n is not None:
            _drop(session, i, n)
            return accepted.cut(0, "stop")
    n = _wanted(session, accepted.tokens)
    return accepted if n is None else accepted.cut(n, "stop")


def _wanted(session: Session, tokens: list[int]) -> int | None:
    n = session.observer(session, tokens) if tokens else None
    if n is not None and not 0 <= n <= len(tokens):
        raise DFlashError(f"the observer was shown {len(tokens)} tokens and wants to keep {n!r}")
    return n


def _drop(session: Session, i: int, n: int) -> None:
    """Of what is held, keep the steps before the i-th and `n` tokens of that one."""
    held = session.held_steps
    session.history.cut(len(session.token_ids) - sum(len(step.tokens) for step in held[i:]) + n)
    del session.logprobs[session.n_tokens :]
    for j, step in enumerate(held[i:], i):
        left = n if j == i else 0
        held[j] = step._replace(
            tokens=step.tokens[:left],
            rows=step.rows[:left],
            accepted=min(step.accepted, left),
            injected=min(step.injected, left),
        )
