"""Memory that sessions take as they grow, and which session gives up its memory when there is none left.

A session starts with KV pages for its prompt and one step, and takes more before each step. If none is left, the prefix
cache gives way, then the youngest session is preempted: its KV pages, recurrent state and drafter state are copied to host
memory and released. It is resumed before any other session starts, with every bit of its state, so it gets the tokens that
it gets alone. The oldest session is never preempted, so some session always reaches its end.
"""

from collections.abc import Callable, Sequence

from dflash.decode.drafting.drafter import Nothing, reserve_draft
from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.scheduling.preempted_state import PreemptedState
from dflash.decode.session import Session
from dflash.errors import PoolExhausted
from dflash.kernels.ragged import PAGE, PENDING

HEADROOM = 1
"""Default number of free KV pages for each active session when another one starts.

With a page, a session decodes 256 tokens before memory can be short. So preemptions stay rare, each of which copies a
state twice.
"""


def step_length(session: Session) -> int:
    """Return the most tokens in a session's KV cache during its next step that decodes.

    The step reads the last token and as many draft tokens as a forward may have, at most up to the end of the session. In
    plain decoding it reads the last token only.
    """
    plain = type(session.drafter) is Nothing and not session.forced_ids and session.grammar is None
    return min(len(session.token_ids) - 1 + (1 if plain else PENDING), session.max_length - 1)


def reserve(session: Session, n_ahead: int = 0) -> None:
    """Take the memory of target and drafter for a session's next step that decodes, and for `n_ahead` tokens beyond it.

    Raises PoolExhausted if there is not enough memory. What was taken stays with the session.
    """
    assert session.state is not None and session.drafter_state is not None, "the session runs"
    length = min(step_length(session) + n_ahead, session.max_length - 1)
    session.state.reserve(length - session.state.length)
    reserve_draft(session.drafter_state, length)


def headroom_pages(session: Session, headroom: int | None) -> int:
    """Return the free KV pages to leave for the growth of a session beyond its next step: at most `headroom`, or all."""
    growth = n_pages(session.max_length - 1) - n_pages(step_length(session))
    return growth if headroom is None else min(growth, headroom)


def n_pages(n: int) -> int:
    """Return the number of KV pages of `n` tokens."""
    return -(-n // PAGE)


def reserve_step(
    active: Sequence[Session],
    cache: PrefixCache | None,
    preempt: Callable[[Session], None],
    fail: Callable[[Session, Exception], None],
) -> None:
    """Take the memory for the next step of each session that decodes, the oldest first.

    While memory is short, snapshots of the prefix cache are evicted, then saved prompts are dropped, which sessions hold
    for a restart. Then the youngest session is preempted, however long it has run. So the oldest session always continues.

    preempt: ``preempt(session)`` moves the state of a session to the host and removes it from `active`.
    fail: ``fail(session, error)`` ends a session that can't have its memory, and removes it from `active`.
    """
    for session in tuple(active):
        while session in active and session.n_prefilled >= session.n_prompt - 1:
            try:
                reserve(session)
                break
            except PoolExhausted as error:
                if _freed(active, cache):
                    continue
                if len(active) == 1:
                    fail(session, error)
                else:
                    preempt(active[-1])
            except Exception as error:
                fail(session, error)


def set_aside(session: Session, cache: PrefixCache | None) -> None:
    """Copy the state of a session that is preempted to the host, and release its memory.

    That includes its snapshots that the cache has only reserved. A session that has just restarted has no state.
    """
    session.n_preempted += 1
    if session.state is not None and session.drafter_state is not None:
        session.preempted_state = PreemptedState.of(session.state, session.drafter_state)
    session.release()
    if cache is not None:
        cache.discard(session)


def _freed(active: Sequence[Session], cache: PrefixCache | None) -> bool:
    """Free memory that no session needs in order to continue; return False if there is none."""
    if cache is not None and cache.give_way():
        return True
    saved = [session for session in active if session.prompt_snapshot is not None]
    if saved:
        saved[-1].discard_prompt_snapshot()
    return bool(saved)
