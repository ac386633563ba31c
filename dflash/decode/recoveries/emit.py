"""Pass tokens to the observer: those of a step, or all that were held back."""

from dflash.decode.recoveries.apply import Decision
from dflash.decode.session import Session
from dflash.decode.verify import Accepted
from dflash.errors import DFlashError


def show(session: Session, decision: Decision) -> Accepted:
    """Pass the steps that were held back, then the present step, to the observer before its tokens are appended.

    session: if the observer accepts only a part of the held tokens, the session ends there.
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
    n = session.observer(session, tokens) if tokens and session.observer is not None else None
    if n is not None and not 0 <= n <= len(tokens):
        raise DFlashError(f"observer: must return None or how many of {len(tokens)} tokens to accept, got {n!r}")
    return n


def _drop(session: Session, i: int, n: int) -> None:
    """Drop the held tokens after the first `n` of held step `i`."""
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
