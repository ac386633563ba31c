"""Who guesses, and what a guesser is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dflash.decode.draft import EMPTY, Draft
from dflash.model.batch import Forward

if TYPE_CHECKING:
    from dflash.decode.session import Session

Rows = slice | Sequence[int]
"""Rows of `Forward.hidden` and `Forward.captured`."""


class Drafting(Protocol):
    """A drafter at work on one session.

    Attributes
    ----------
    capture : tuple of int
        Layers of the target that it wants to see, often none.
    """

    capture: tuple[int, ...]

    def propose(self, room: int) -> Draft:
        """Guess at most `room` tokens under the last token of ``session.text``; what is beyond is cut off."""
        ...

    def observe(self, out: Forward, rows: Rows) -> None:
        """See rows of a forward, in the order of the text, that are text now; they last until the next forward.

        The prompt but its last token comes first, chunk by chunk; then, after each step, the token that was last before it
        and the accepted guesses. ``session.text`` has the new tokens already.
        """
        ...

    def close(self) -> None:
        """Give back what it holds; called once, whatever happened."""
        ...


class Drafter(Protocol):
    """Guesses what comes next; is never believed. Holds settings, no request; equal drafters work together."""

    def start(self, session: Session) -> Drafting:
        """Begin with a session whose prompt has not been read yet."""
        ...

    def propose(self, draftings: Sequence[Drafting], rooms: Sequence[int]) -> list[Draft]:
        """Guess for several sessions at once; in this default, one after another. An exception ends them all."""
        return [drafting.propose(room) for drafting, room in zip(draftings, rooms, strict=True)]


@dataclass(frozen=True)
class Nothing(Drafter):
    """Guesses nothing: plain decoding."""

    def start(self, session: Session) -> Drafting:  # noqa: ARG002
        """There is nothing to remember of any session."""
        return _SILENT


class _Silent:
    capture: tuple[int, ...] = ()

    def propose(self, room: int) -> Draft:  # noqa: ARG002
        return EMPTY

    def observe(self, out: Forward, rows: Rows) -> None:
        pass

    def close(self) -> None:
        pass


_SILENT = _Silent()
