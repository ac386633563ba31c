"""Admission of sessions: checks before they wait, and the memory that they take when they start."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from dflash.decode.drafting.drafter import Drafter, DrafterSnapshot
from dflash.decode.drafting.state_check import checked_state
from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.session import Session
from dflash.decode.snapshot import SessionSnapshot
from dflash.errors import ContextOverflow, OutOfMemory, PoolExhausted, RequestError
from dflash.kernels.ragged import PAGE
from dflash.model.protocols.sequence import SequenceSnapshot
from dflash.model.protocols.target import TargetModel


def check(model: TargetModel, session: Session) -> None:
    """Raise an error if a session can never run, and set its `max_length`.

    Parameters
    ----------
    model : TargetModel
        The model of the engine.
    session : Session
        A session that was not added to an engine before.

    Raises
    ------
    RequestError
        If an id is not in the vocabulary, a recovery has no method ``start``, or the strategy uses a draft model more often
        than that has slots.
    ContextOverflow
        If prompt and one more token do not fit the context.
    PoolExhausted
        If the session does not fit all KV pages of the model.
    """
    if session.added_at is not None:
        raise RequestError("session: was added before; make a new one to run it again")
    for recovery in session.strategy.recoveries:
        if isinstance(recovery, type) or not hasattr(recovery, "start") or hasattr(recovery, "propose"):
            raise RequestError(
                f"strategy: {recovery!r} is not a recovery; add an object with start(session), such as LoopGuard()"
            )
    _check_ids(model.n_vocab, session)
    _check_drafters(model, session.strategy.drafter)
    context, capacity, n_prompt = model.config.context, model.pools.pages * PAGE, session.n_prompt
    if n_prompt > context or (n_prompt == context and session.max_tokens != 0):
        message = f"the prompt has {n_prompt} tokens, the context of {context} must have room for one more"
        raise ContextOverflow(message, n_tokens=n_prompt, context=context)
    # the last token of a sequence is never in the KV cache
    wanted = min(context, capacity + 1) if session.max_tokens is None else min(context, n_prompt + session.max_tokens)
    session.max_length = max(wanted, n_prompt)
    if session.max_tokens != 0 and (session.max_length - 1 > capacity or session.max_length == n_prompt):
        raise PoolExhausted(
            f"a prompt of {n_prompt} tokens and {session.max_length - n_prompt} new ones never fit {capacity} KV positions; "
            "ask for fewer tokens or load the model with more pages"
        )


def admit(model: TargetModel, session: Session, cache: PrefixCache | None = None) -> None:
    """Start a session: take all memory that it needs until its end, with the longest fitting snapshot of the cache.

    Raises
    ------
    PoolExhausted
        If there is not enough memory now; nothing is taken then. The same holds for errors of the drafter or a recovery.
    """
    session.drafter.prepare(model)
    _take_evicting(model, session, session.prefix, cache)
    try:
        started = (recovery.start(session) for recovery in session.strategy.recoveries)
        session.recovery_states = [recovery_state for recovery_state in started if recovery_state is not None]
        if session.recorder is not None:
            session.recorder.started(session)
    except BaseException:
        session.release()
        raise


def readmit(model: TargetModel, session: Session, cache: PrefixCache | None = None) -> None:
    """Restart a session with plain decoding, from the end of its prompt if that was saved, else from its prefix."""
    snapshot, session.prompt_snapshot = session.prompt_snapshot, None
    try:
        session.release()
        session.rewind()
        _take_evicting(model, session, snapshot or session.prefix, cache)
    finally:
        if snapshot is not None:
            snapshot.close()


def save_prompt_snapshot(session: Session) -> None:
    """Save the state at the end of the prompt, if a recovery may restart the session and there is memory for it."""
    if not any(recovery_state.restarts for recovery_state in session.recovery_states):
        return
    assert session.state is not None, "the session runs"
    # without it, a restart prefills the prompt again
    with suppress(PoolExhausted, OutOfMemory):
        session.prompt_snapshot = session.state.snapshot()


def _take_evicting(
    model: TargetModel, session: Session, prefix: SessionSnapshot | SequenceSnapshot | None, cache: PrefixCache | None
) -> None:
    """Take the memory, with a snapshot of the cache if there is no other; the cache gives way while memory is short."""
    finder = cache if session.use_prefix_cache and prefix is None else None
    if finder is not None:
        prefix = finder.find(model, session)
    while True:
        try:
            _take(model, session, prefix)
            break
        except PoolExhausted:
            if cache is None or not cache.evict_oldest(spared=prefix):
                raise
    if finder is not None:
        finder.count(session)


def _take(model: TargetModel, session: Session, prefix: SessionSnapshot | SequenceSnapshot | None) -> None:
    drafter_snapshot: DrafterSnapshot | None = None
    known: SequenceSnapshot | None
    if isinstance(prefix, SessionSnapshot):
        drafter_snapshot, known = prefix.of(session.drafter), prefix.state
    else:
        known = prefix
    _check_pages(model, session.max_length - 1, known.length if known is not None else 0)
    try:
        session.state = state = model.state()
        if known is not None:
            state.restore(known)
        session.n_prefilled = known.length if known is not None else 0
        state.reserve(session.max_length - 1 - session.n_prefilled)
        session.drafter_state = checked_state(session.drafter, session.drafter.start(session, model, drafter_snapshot))
    except BaseException:
        session.n_prefilled = 0
        session.release()
        raise


def _check_pages(model: TargetModel, n: int, n_shared: int) -> None:
    """Raise PoolExhausted if `n` tokens, with a shared prefix of `n_shared`, do not fit. Done before a slot is cleared."""
    missing, free = -(-n // PAGE) - n_shared // PAGE, model.pools.free_pages
    if missing > free:
        raise PoolExhausted(f"the session needs {missing} KV pages of {PAGE} tokens, {free} of {model.pools.pages} are free")


def _check_drafters(model: TargetModel, drafter: Drafter) -> None:
    """Raise a RequestError if one strategy needs more slots of a draft model than it has: one for each of the target."""
    loaded = (part for part in _parts_of(drafter) if part in model.attachments)
    for part, n in Counter(loaded).items():
        if n > model.pools.slots:
            raise RequestError(
                f"strategy: names {type(part).__name__} {n} times, its draft model has {model.pools.slots} slots"
            )


def _parts_of(drafter: Drafter) -> Iterator[Drafter]:
    """Yield the drafters inside a drafter, at any depth."""
    inside = [drafter]
    while inside:
        part = inside.pop()
        parts = (*getattr(part, "drafters", ()), *(each.drafter for each in getattr(part, "strategies", ())))
        if parts:
            inside += parts
        else:
            yield part


def _check_ids(n_vocab: int, session: Session) -> None:
    if session.prompt_array.max() >= n_vocab:
        bad = next(i for i, token in enumerate(session.prompt_array.tolist()) if token >= n_vocab)
        raise RequestError(
            f"prompt: token {session.prompt_array[bad]} at {bad} is not in the vocabulary, ids are 0 to {n_vocab - 1}"
        )
    for token, _ in session.sampling.bias_pairs:
        if token >= n_vocab:
            raise RequestError(f"logit_bias: token {token} is not in the vocabulary, ids are 0 to {n_vocab - 1}")
