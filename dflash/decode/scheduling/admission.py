"""Whether and when a session may start."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from dflash.decode.session import Session
from dflash.decode.snapshot import SessionSnapshot
from dflash.errors import ContextOverflow, OutOfMemory, PoolExhausted, RequestError
from dflash.kernels.ragged import PAGE
from dflash.model.state.sequence_state import Snapshot


def check(model: Any, session: Session) -> None:
    """Refuse what can never be worked on, and set the length that the text may reach.

    Parameters
    ----------
    model : Model
        What would read it.
    session : Session
        Not added to an engine before.

    Raises
    ------
    RequestError
        If an id is not in the vocabulary, the strategy holds what is no recovery, or it uses a draft model for more texts
        than that has room for.
    ContextOverflow
        If the context has no room for the prompt and one more token.
    PoolExhausted
        If the KV pages would not do even with nobody else there.
    """
    if session.added_at is not None:
        raise RequestError("session: was added before; make a new one to run it again")
    for recovery in session.strategy.recoveries:
        if isinstance(recovery, type) or not hasattr(recovery, "start") or hasattr(recovery, "propose"):
            raise RequestError(f"strategy: {recovery!r} is among its recoveries and is none")
    _check_ids(model.n_vocab, session)
    _check_drafters(model, session.strategy.drafter)
    context, capacity, n_prompt = model.config.context, model.pools.pages * PAGE, session.n_prompt
    if n_prompt > context or (n_prompt == context and session.max_tokens != 0):
        raise ContextOverflow(f"the prompt has {n_prompt} tokens, the context of {context} must have room for one more")
    # the last token of a text is never read
    wanted = min(context, capacity + 1) if session.max_tokens is None else min(context, n_prompt + session.max_tokens)
    session.max_length = max(wanted, n_prompt)
    if session.max_tokens != 0 and (session.max_length - 1 > capacity or session.max_length == n_prompt):
        raise PoolExhausted(
            f"a prompt of {n_prompt} tokens and {session.max_length - n_prompt} new ones never fit {capacity} KV positions; "
            "ask for fewer tokens or load the model with more pages"
        )


def admit(model: Any, session: Session) -> None:
    """Take all that the session needs to run to its end.

    Raises
    ------
    PoolExhausted
        If there is not enough now; nothing is taken then. What the drafter or a recovery raises passes through likewise.
    """
    session.drafter.prepare(model)
    _take(model, session, session.prefix)
    try:
        started = (recovery.start(session) for recovery in session.strategy.recoveries)
        session.recovery_states = [recovery_state for recovery_state in started if recovery_state is not None]
        if session.recorder is not None:
            session.recorder.started(session)
    except BaseException:
        session.release()
        raise


def readmit(model: Any, session: Session) -> None:
    """Take a session back to the end of its prompt, or to its begin, to be written again without guesses."""
    origin, session.prompt_snapshot = session.prompt_snapshot, None
    try:
        session.release()
        session.rewind()
        _take(model, session, origin or session.prefix)
    finally:
        if origin is not None:
            origin.close()


def save_prompt_snapshot(session: Session) -> None:
    """Remember the end of a prompt that was just read, if a recovery may go back there and there is memory for it."""
    if not any(recovery_state.restarts for recovery_state in session.recovery_states):
        return
    # without it, the prompt would be read once more
    with suppress(PoolExhausted, OutOfMemory):
        session.prompt_snapshot = session.state.snapshot()


def _take(model: Any, session: Session, prefix: SessionSnapshot | Snapshot | None) -> None:
    memory, known = None, prefix
    if isinstance(prefix, SessionSnapshot):
        memory, known = prefix.of(session.drafter), prefix.state
    _check_pages(model, session.max_length - 1, known.length if known is not None else 0)
    try:
        session.state = model.state()
        if known is not None:
            session.state.restore(known)
        session.n_prefilled = known.length if known is not None else 0
        session.state.reserve(session.max_length - 1 - session.n_prefilled)
        session.drafter_state = session.drafter.start(session, model, memory)
    except BaseException:
        session.n_prefilled = 0
        session.release()
        raise


def _check_pages(model: Any, n: int, n_shared: int) -> None:
    """Refuse `n` tokens, of which a prefix of `n_shared` is there, before a slot is taken and cleared in vain."""
    missing, free = -(-n // PAGE) - n_shared // PAGE, model.pools.free_pages
    if missing > free:
        raise PoolExhausted(f"{missing} KV pages of {PAGE} tokens are wanted, {free} of {model.pools.pages} are free")


def _check_drafters(model: Any, drafter: Any) -> None:
    """Refuse one session that alone takes more texts of a draft model than the model has: one a slot of the target."""
    loaded = (part for part in _parts_of(drafter) if part in model.attachments)
    for part, n in Counter(loaded).items():
        if n > model.pools.slots:
            raise RequestError(
                f"strategy: names {type(part).__name__} {n} times, its draft model has room for {model.pools.slots} texts"
            )


def _parts_of(drafter: Any) -> Iterator[Any]:
    """Yield the drafters that a drafter is made of, those inside others included."""
    inside = [drafter]
    while inside:
        part = inside.pop()
        parts = (*getattr(part, "drafters", ()), *(each.drafter for each in getattr(part, "strategies", ())))
        if parts:
            inside += parts
        else:
            yield part


def _check_ids(n_vocab: int, session: Session) -> None:
    if session.ids.max() >= n_vocab:
        bad = next(i for i, token in enumerate(session.ids.tolist()) if token >= n_vocab)
        raise RequestError(f"prompt: token {session.ids[bad]} at {bad} is not in the vocabulary, ids are 0 to {n_vocab - 1}")
    for token, _ in session.sampling.logit_bias:
        if token >= n_vocab:
            raise RequestError(f"logit_bias: token {token} is not in the vocabulary, ids are 0 to {n_vocab - 1}")
