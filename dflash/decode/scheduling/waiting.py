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

    n_overtaken: how many later sessions started while this one did not fit memory.
    refused_at: state of memory when the session last did not fit; None if it was not tried.
    """

    session: Session
    n_overtaken: int = 0
    refused_at: tuple[int, int, int] | None = None

    @property
    def overdue(self) -> bool:
        """True if no other session may overtake this one."""
        return self.n_overtaken >= MAX_OVERTAKEN


class WaitingQueue:
    """Sessions that wait to start. Those of the lowest priority number come first.

    Of one priority, groups take turns, and within a group the oldest session comes first. A session whose `group` is None is
    a group of its own, so sessions without groups come in the order of their arrival. Preempted sessions come before all
    others of their priority, the oldest first, and none of these overtakes them.
    """

    def __init__(self) -> None:
        # the oldest last
        self._preempted: list[Ticket] = []
        # by priority; the order of the groups is the order of their turns
        self._groups: dict[int, dict[Hashable, dict[Session, Ticket]]] = {}
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[Session]:
        others = [session for _, groups in sorted(self._groups.items()) for group in groups.values() for session in group]
        return iter([*(ticket.session for ticket in reversed(self._preempted)), *others])

    def append(self, session: Session) -> None:
        """Append a session to its group; a new group has its turn last."""
        self._groups.setdefault(session.priority, {}).setdefault(_group_of(session), {})[session] = Ticket(session)
        self._n += 1

    def prepend(self, session: Session) -> None:
        """Put a preempted session before all that did not start, and in the order of their start among preempted ones."""
        insort(self._preempted, Ticket(session, MAX_OVERTAKEN), key=lambda ticket: [-each for each in place(ticket.session)])
        self._n += 1

    def in_turn(self, n: int) -> list[Ticket]:
        """Return the first `n` tickets in the order in which their sessions may start."""
        found: list[Ticket] = []
        for priority in sorted(self._groups):
            if self._preempted and self._preempted[-1].session.priority <= priority:
                break
            groups = islice(self._groups[priority].values(), n)
            rounds = chain.from_iterable(zip_longest(*(group.values() for group in groups)))
            found += islice((ticket for ticket in rounds if ticket is not None), n - len(found))
        return [*found, *self._preempted[:-2:-1]][:n]

    def start(self, session: Session) -> None:
        """Remove a session that starts; its group goes to the end of the turns."""
        self.remove(session)
        groups, name = self._groups.get(session.priority, {}), _group_of(session)
        if name in groups:
            groups[name] = groups.pop(name)

    def remove(self, session: Session) -> None:
        """Remove a session; harmless if it is not there."""
        for ticket in self._preempted:
            if ticket.session is session:
                self._preempted.remove(ticket)
                self._n -= 1
                return
        groups, name = self._groups.get(session.priority, {}), _group_of(session)
        group = groups.get(name, {})
        if group.pop(session, None) is not None:
            self._n -= 1
            if not group:
                del groups[name]
            if not groups:
                del self._groups[session.priority]


def place(session: Session) -> tuple[int, float]:
    """Return the place of a session among those that started: the lower, the earlier it is served, by priority and age."""
    return session.priority, session.started_at or 0.0


def _group_of(session: Session) -> Hashable:
    return session if session.group is None else session.group
