"""Starts waiting sessions in turn, as memory allows."""

from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.scheduling.admission import admit
from dflash.decode.scheduling.memory import headroom_pages, n_pages
from dflash.decode.scheduling.waiting import Ticket, WaitingQueue
from dflash.decode.session import Session
from dflash.errors import PoolExhausted
from dflash.kernels.ragged import PAGE
from dflash.model.protocols.target import TargetModel

_N_TRIED = 64
"""Most waiting sessions that are tried in one step if those before them do not fit memory. Bounds the time of a step."""


class Tried(NamedTuple):
    """A session that has started; one that is to end instead has an `end`, and maybe an `error`."""

    session: Session
    end: str | None = None
    error: Exception | None = None


class Starter:
    """Starts sessions; see `admit` for the parameters."""

    def __init__(self, model: TargetModel, cache: PrefixCache | None, headroom: int | None, max_swap: int | None) -> None:
        self._model, self._cache, self.headroom, self.max_swap = model, cache, headroom, max_swap

    def start(self, session: Session, active: Sequence[Session]) -> None:
        """Start or resume a session beside the active ones. Raises the errors of `admit`."""
        admit(self._model, session, self._cache, active=active, headroom=self.headroom, max_swap=self.max_swap)
        session.started_at = session.started_at or perf_counter()

    def has_room(self, saved: int, end: int, active: Sequence[Session]) -> bool:
        """Return True if a session of `end` tokens, of which `saved` are, can start while all snapshots stay."""
        pools, missing = self._model.pools, n_pages(end + 1) - saved // PAGE
        missing += sum(headroom_pages(each, self.headroom) for each in active)
        return pools.free_slots > 0 and missing <= pools.free_pages

    def first(self, waiting: WaitingQueue, active: Sequence[Session], n_ended: int) -> Tried | None:
        """Start the first waiting session that can be, or return one that is to end; None if none fits memory.

        waiting: a session that starts leaves it.
        n_ended: sessions that have ended so far: what did not fit memory before is tried again if there is more of it.

        A session with a grammar waits while slow masks of others delay the active ones.
        """
        overtaken: list[Ticket] = []
        pools = self._model.pools
        for ticket in waiting.in_turn(_N_TRIED):
            session = ticket.session
            if session.max_length == session.n_prompt and not session.unscored:
                return Tried(session, "length")
            if active and not _masks_allow(session, active):
                continue
            memory = n_ended, pools.free_pages, pools.free_slots
            if ticket.refused_at is None or any(now > then for now, then in zip(memory, ticket.refused_at, strict=True)):
                try:
                    self._start_evicting(session, active)
                except PoolExhausted as error:
                    if not active:
                        return Tried(session, "error", error)
                    ticket.refused_at = memory
                except Exception as error:
                    return Tried(session, "error", error)
                else:
                    waiting.start(session)
                    for other in overtaken:
                        other.n_overtaken += 1
                    return Tried(session)
            if ticket.overdue:
                return None
            overtaken.append(ticket)
        return None

    def _start_evicting(self, session: Session, active: Sequence[Session]) -> None:
        """Start a session. If no other runs, every snapshot gives way to it."""
        while True:
            try:
                self.start(session, active)
                return
            except PoolExhausted:
                if active or self._cache is None or not self._cache.evict_oldest():
                    raise


def _masks_allow(session: Session, active: Sequence[Session]) -> bool:
    """Return True unless the first masks of a session could delay the active ones for long.

    They may be slow for all that is known. So no session with a grammar starts while the time for slow masks is spent, and
    one at a time while a part of it is. One that was preempted has had its first masks.
    """
    load = 0.0 if session.grammar is None or session.steps else session.grammar.mask_load
    return load == 0.0 or (load < 1.0 and all(other.grammar is None or other.steps for other in active))
