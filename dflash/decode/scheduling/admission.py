"""Admission of sessions: checks before they wait, and the memory that they take when they start."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

from dflash.decode.drafting.diagnostics import most_drafted, warn
from dflash.decode.drafting.drafter import Drafter, DrafterSnapshot, Nothing, Strategy
from dflash.decode.drafting.state_check import checked_state
from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.recoveries.state_check import checked_state as checked_recovery
from dflash.decode.registry import name
from dflash.decode.scheduling.memory import headroom_pages, n_pages, reserve, step_length
from dflash.decode.session import Session
from dflash.decode.snapshot import SessionSnapshot
from dflash.errors import ContextOverflow, OutOfMemory, PoolExhausted, QueueFull, RequestError
from dflash.kernels.ragged import PAGE
from dflash.model.protocols.sequence import SequenceSnapshot
from dflash.model.protocols.target import TargetModel


def check(model: TargetModel, session: Session) -> None:
    """Raise an error if a session can never run, and set its `max_length`."""
    if session.added_at is not None:
        raise RequestError("session: was added before; make a new one to run it again")
    for recovery in session.strategy.recoveries:
        if isinstance(recovery, type) or not hasattr(recovery, "start") or hasattr(recovery, "propose"):
            raise RequestError(f"strategy: {recovery!r} is not a recovery; add one with start(session), as LoopGuard()")
    _check_ids(model.n_vocab, session)
    check_drafts(model, session.strategy)
    _check_drafters(model, session.strategy.drafter)
    context, capacity, n_prompt = model.config.context, model.pools.pages * PAGE, session.n_prompt
    if n_prompt > context or (n_prompt == context and session.max_tokens != 0):
        message = f"the prompt has {n_prompt} tokens, the context of {context} must have room for one more"
        raise ContextOverflow(message, n_tokens=n_prompt, context=context)
    # the last token of a sequence is never in the KV cache
    wanted = min(context, capacity + 1) if session.max_tokens is None else min(context, n_prompt + session.max_tokens)
    session.max_length = max(wanted, n_prompt)
    no_room = session.max_tokens != 0 and session.max_length == n_prompt
    if no_room or (session.max_length - 1 > capacity and (session.max_tokens != 0 or session.unscored)):
        raise PoolExhausted(
            f"a prompt of {n_prompt} tokens and {session.max_length - n_prompt} new ones never fit {capacity} KV positions; "
            "ask for fewer tokens or load the model with more pages"
        )


def check_drafts(model: TargetModel, strategy: Strategy) -> None:
    """Raise a `RequestError` if a strategy drafts and the model has no pending row for a draft token."""
    if model.config.pending == 1 and type(strategy.drafter) is not Nothing:
        raise RequestError(
            f"strategy: {strategy!r} drafts, but the model was loaded with pending=1, a row for the last token only; "
            "load it with one more for each draft token, such as pending=16, or use plain decoding"
        )


def warnings_of_size(model: TargetModel, strategy: Strategy) -> Iterator[str]:
    """Yield a sentence for each number of a strategy that the model or a draft model cuts; each is logged once.

    Drafters must be prepared: the file of a draft model says how long its blocks are.
    """
    for part in _parts_of(strategy):
        most, shape = most_drafted(model, part), part.shape
        wanted = getattr(part.drafter, "n_draft", 0) or getattr(shape, "budget", 0) or getattr(shape, "depth", 0) or 0
        if wanted > most:
            yield warn(model, f"strategy {name(part)}: drafts have at most {most} tokens here, not {wanted}")


def check_queue(n: int, waiting: int, active: int, max_waiting: int | None, max_active: int) -> None:
    """Raise an error if the queue has no place for `n` more sessions; None as `max_waiting` stands for any number."""
    if max_waiting is None:
        return
    if n > (most := max_waiting + max_active):
        raise RequestError(f"sessions: at most {most} fit the queue and the active ones together, got {n} at once")
    if waiting + n > max_waiting + max(0, max_active - active):
        raise QueueFull(f"{waiting} sessions wait to start, at most {max_waiting} may; try again later")


def admit(
    model: TargetModel,
    session: Session,
    cache: PrefixCache | None = None,
    *,
    active: Sequence[Session] = (),
    headroom: int | None = None,
    max_swap: int | None = None,
) -> None:
    """Start a session, or resume a preempted one: take the memory for its tokens and for one step that decodes.

    A new session begins with the longest fitting snapshot of the cache, a preempted one with its own state.

    headroom: KV pages that must stay free for the growth of each running session and of this one, if others run; fewer if a
        session will need fewer. None stands for all that they need until their ends.
    max_swap: most KV pages that the host may have to hold if all sessions but the oldest are preempted after a new one has
        started; unbounded if None.
    Raises PoolExhausted if there is not enough memory now, or the host could have to hold too much; nothing is taken then.
        The same holds for errors of the drafter or a recovery. If no other session runs, the memory must do for the session
        until its end.
    """
    session.drafter.prepare(model)
    prefix = _open_prefix(session)
    if active:
        _check_swap(active, session, max_swap)
        n_spare = sum(headroom_pages(each, headroom) for each in (*active, session))
    else:
        n_spare = 0
        _check_whole(model, session, prefix, cache)
    _take_evicting(model, session, prefix, cache, n_spare)
    if session.started_at is not None:
        return
    try:
        started = ((recovery, recovery.start(session)) for recovery in session.strategy.recoveries)
        session.recovery_states = [checked_recovery(recovery, state) for recovery, state in started if state is not None]
        if session.recorder is not None:
            session.recorder.started(session)
        session.warnings += warnings_of_size(model, session.strategy)
    except BaseException:
        session.release()
        raise


def readmit(model: TargetModel, session: Session, cache: PrefixCache | None = None) -> bool:
    """Restart a session with plain decoding, from the end of its prompt if that was saved, else from its prefix."""
    snapshot, session.prompt_snapshot = session.prompt_snapshot, None
    try:
        session.release()
        session.rewind()
        _take_evicting(model, session, snapshot or _open_prefix(session), cache)
    except PoolExhausted:
        return False
    finally:
        if snapshot is not None:
            snapshot.close()
    return True


def save_prompt_snapshot(session: Session) -> None:
    """Save the state at the end of the prompt, if a recovery may restart the session and there is memory for it."""
    if not any(recovery_state.restarts for recovery_state in session.recovery_states):
        return
    assert session.state is not None, "the session runs"
    # without it, a restart prefills the prompt again
    with suppress(PoolExhausted, OutOfMemory):
        session.prompt_snapshot = session.state.snapshot()


def _open_prefix(session: Session) -> SessionSnapshot | SequenceSnapshot | None:
    """Return the given prefix; None if the session has started before and its caller has closed the prefix meanwhile."""
    prefix = session.prefix
    if prefix is None or session.started_at is None:
        return prefix
    return None if _sequence_of(prefix).closed else prefix


def _sequence_of(prefix: SessionSnapshot | SequenceSnapshot) -> SequenceSnapshot:
    return prefix.state if isinstance(prefix, SessionSnapshot) else prefix


def _take_evicting(
    model: TargetModel,
    session: Session,
    prefix: SessionSnapshot | SequenceSnapshot | None,
    cache: PrefixCache | None,
    n_spare: int = 0,
) -> None:
    """Take the memory, with a snapshot of the cache if there is no other; the cache gives way while memory is short."""
    finder = cache if session.use_prefix_cache and prefix is None and session.preempted_state is None else None
    if finder is not None:
        prefix = finder.find(model, session)
    while True:
        try:
            _take(model, session, prefix, n_spare)
            break
        except PoolExhausted:
            if cache is None or not cache.evict_oldest(spared=prefix):
                raise
    if finder is not None:
        finder.count(session)


def _take(model: TargetModel, session: Session, prefix: SessionSnapshot | SequenceSnapshot | None, n_spare: int) -> None:
    known, preempted = None if prefix is None else _sequence_of(prefix), session.preempted_state
    _check_pages(model, step_length(session), known.length if known is not None else 0, n_spare)
    drafter_snapshot: DrafterSnapshot | None = None
    try:
        with ExitStack() as copies:
            session.state = state = model.state()
            if preempted is not None:
                state.restore_from_host(preempted.target, known.pages[: known.length // PAGE] if known is not None else ())
                drafter_snapshot = preempted.drafter_snapshot(model, session.drafter)
                if drafter_snapshot is not None:
                    copies.callback(drafter_snapshot.close)
            elif known is not None:
                state.restore(known)
                drafter_snapshot = prefix.of(session.drafter) if isinstance(prefix, SessionSnapshot) else None
            session.n_prefilled = state.length
            session.drafter_state = checked_state(session.drafter, session.drafter.start(session, model, drafter_snapshot))
        reserve(session)
    except BaseException:
        session.n_prefilled = 0
        session.release()
        raise
    session.preempted_state = None


def _check_pages(model: TargetModel, n: int, n_shared: int, n_spare: int) -> None:
    """Raise PoolExhausted if `n` tokens, with a shared prefix of `n_shared`, do not fit or leave fewer than `n_spare` pages.

    Done before a slot is cleared.
    """
    missing, free = n_pages(n) - n_shared // PAGE, model.pools.free_pages
    if missing + n_spare > free:
        more = f" and {n_spare} more for the growth of all sessions" if n_spare else ""
        raise PoolExhausted(
            f"the session needs {missing} KV pages of {PAGE} tokens{more}, {free} of {model.pools.pages} are free"
        )


def _check_swap(active: Sequence[Session], session: Session, max_swap: int | None) -> None:
    """Raise PoolExhausted if a new session could make the host hold too many pages of preempted sessions.

    Pages that several sessions share count for each of them: each gets a copy of its own.
    """
    if max_swap is None or session.started_at is not None:
        return
    n = sum(n_pages(step_length(each)) for each in (*active[1:], session))
    if n > max_swap:
        raise PoolExhausted(f"{n} KV pages would have to be moved if memory gets short, at most {max_swap} may be")


def _check_whole(
    model: TargetModel, session: Session, prefix: SessionSnapshot | SequenceSnapshot | None, cache: PrefixCache | None
) -> None:
    """Raise PoolExhausted if a session that runs alone could not reach its end, since callers hold snapshots."""
    missing = n_pages(session.max_length - 1) - (_sequence_of(prefix).length // PAGE if prefix is not None else 0)
    free = model.pools.free_pages
    if missing > free and cache is not None:
        free += cache.n_own_pages(model)
    if missing > free:
        raise PoolExhausted(
            f"the session needs {missing} KV pages of {PAGE} tokens, {free} of {model.pools.pages} are not held by callers"
        )


def _check_drafters(model: TargetModel, drafter: Drafter) -> None:
    """Raise a RequestError if one strategy needs more slots of a draft model than it has: one for each of the target."""
    loaded = (part.drafter for part in _parts_of(Strategy(drafter)) if part.drafter in model.attachments)
    most = model.pools.slots
    for part, n in Counter(loaded).items():
        if n > most:
            raise RequestError(f"strategy: names {type(part).__name__} {n} times, its draft model has {most} slots")


def _parts_of(strategy: Strategy) -> Iterator[Strategy]:
    """Yield the strategies inside a strategy, at any depth; those without a shape have the one around them."""
    inner: Sequence[Strategy] = getattr(strategy.drafter, "strategies", ())
    for part in inner:
        yield from _parts_of(replace(part, shape=part.shape or strategy.shape))
    if not inner:
        yield strategy


def _check_ids(n_vocab: int, session: Session) -> None:
    if session.prompt_array.max() >= n_vocab:
        bad = next(i for i, token in enumerate(session.prompt_array.tolist()) if token >= n_vocab)
        raise RequestError(
            f"prompt: token {session.prompt_array[bad]} at {bad} is not in the vocabulary, ids are 0 to {n_vocab - 1}"
        )
    for token, _ in session.sampling.bias_pairs:
        if token >= n_vocab:
            raise RequestError(f"logit_bias: token {token} is not in the vocabulary, ids are 0 to {n_vocab - 1}")
