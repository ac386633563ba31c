"""Queue of sessions that wait to start; groups take turns."""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash.decode.session import Session

MAX_OVERTAKEN = 32
"""Starts of later sessions, after which a session that does not fit memory lets no other session start before it does.

Enough for several rounds of the default 8 active sessions: short requests overtake a long one while memory is scarce, but no
more than these.
"""


@dataclass(eq=False, slots=True)
class Ticket:
    """The place of one session in the queue.

    Attributes
    ----------
    session : Session
    n_overtaken : int
        How many later sessions started while this one did not fit memory.
    refused_at : object
        State of memory when the session last did not fit; None if it was not tried.
    """

    session: Session
    n_overtaken: int = 0
    refused_at: tuple[int, int, int] | None = None

    @property
    def overdue(self) -> bool:
        """True if no other session may overtake this one."""
        return self.n_overtaken >= MAX_OVERTAKEN


class WaitingQueue:
    """Sessions that wait to start. Groups take turns; within a group the oldest session comes first.

    A session whose `group` is None is a group of its own, so sessions without groups come in the order of their arrival.
    Preempted sessions come before all others, the oldest first, and none overtakes them.
    """

    def __init__(self) -> None:
        # the oldest last
        self._preempted: list[Ticket] = []
        # the order of the groups is the order of their turns
        self._groups: dict[Hashable, dict[Session, Ticket]] = {}
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[Session]:
        others = [session for group in self._groups.values() for session in group]
        return iter([*(ticket.session for ticket in reversed(self._preempted)), *others])

    def append(self, session: Session) -> None:
        """Append a session to its group; a new group has its turn last."""
        self._groups.setdefault(_group_of(session), {})[session] = Ticket(session)
        self._n += 1

    def prepend(self, session: Session) -> None:
        """Put a preempted session before all that did not start, and in the order of their start among preempted ones."""
        insort(self._preempted, Ticket(session, MAX_OVERTAKEN), key=lambda ticket: -start_time(ticket.session))
        self._n += 1

    def in_turn(self, n: int) -> list[Ticket]:
        """Return the first `n` tickets in the order in which their sessions may start."""
        if self._preempted:
            return self._preempted[:-2:-1]
        groups = islice(self._groups.values(), n)
        rounds = chain.from_iterable(zip_longest(*(group.values() for group in groups)))
        return list(islice((ticket for ticket in rounds if ticket is not None), n))

    def start(self, session: Session) -> None:
        """Remove a session that starts; its group goes to the end of the turns."""
        self.remove(session)
        name = _group_of(session)
        if name in self._groups:
            self._groups[name] = self._groups.pop(name)

    def remove(self, session: Session) -> None:
        """Remove a session; harmless if it is not there."""
        for ticket in self._preempted:
            if ticket.session is session:
                self._preempted.remove(ticket)
                self._n -= 1
                return
        name = _group_of(session)
        group = self._groups.get(name, {})
        if group.pop(session, None) is not None:
            self._n -= 1
            if not group:
                del self._groups[name]


def start_time(session: Session) -> float:
    """Return the time at which a session was first admitted. Of two, the one with the lower time is the older."""
    return session.started_at or 0.0


def _group_of(session: Session) -> Hashable:
    return session if session.group is None else session.group
