"""Whether and when a session may start."""

from typing import Any

from dflash.decode.session import Session
from dflash.errors import ContextOverflow, PoolExhausted, RequestError
from dflash.kernels.ragged import PAGE


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
        If an id is not in the vocabulary, or the strategy holds recoveries.
    ContextOverflow
        If the context has no room for the prompt and one more token.
    PoolExhausted
        If the KV pages would not do even with nobody else there.
    """
    if session.added_at is not None:
        raise RequestError("session: was added before; make a new one to run it again")
    if session.strategy.recoveries:
        raise RequestError(f"strategy: {session.strategy!r} holds recoveries, which are not supported")
    _check_ids(model.n_vocab, session)
    context, capacity, n_prompt = model.config.context, model.pools.pages * PAGE, session.n_prompt
    if n_prompt > context or (n_prompt == context and session.max_tokens != 0):
        raise ContextOverflow(f"the prompt has {n_prompt} tokens, the context of {context} must have room for one more")
    # the last token of a text is never read
    wanted = min(context, capacity + 1) if session.max_tokens is None else min(context, n_prompt + session.max_tokens)
    session.limit = max(wanted, n_prompt)
    if session.max_tokens != 0 and (session.limit - 1 > capacity or session.limit == n_prompt):
        raise PoolExhausted(
            f"a prompt of {n_prompt} tokens and {session.limit - n_prompt} new ones never fit {capacity} KV positions; "
            "ask for fewer tokens or load the model with more pages"
        )


def admit(model: Any, session: Session) -> None:
    """Take all that the session needs to run to its end.

    Raises
    ------
    PoolExhausted
        If there is not enough now; nothing is taken then. What the drafter raises passes through likewise.
    """
    try:
        session.state = model.state()
        if session.prefix is not None:
            session.state.restore(session.prefix)
            session.n_read = session.prefix.length
        session.state.reserve(session.limit - 1 - session.n_read)
        session.drafting = session.strategy.drafter.start(session, model)
    except BaseException:
        session.n_read = 0
        session.release()
        raise


def _check_ids(n_vocab: int, session: Session) -> None:
    if session.ids.max() >= n_vocab:
        bad = next(i for i, token in enumerate(session.ids.tolist()) if token >= n_vocab)
        raise RequestError(f"prompt: token {session.ids[bad]} at {bad} is not in the vocabulary, ids are 0 to {n_vocab - 1}")
    for token, _ in session.sampling.logit_bias:
        if token >= n_vocab:
            raise RequestError(f"logit_bias: token {token} is not in the vocabulary, ids are 0 to {n_vocab - 1}")
