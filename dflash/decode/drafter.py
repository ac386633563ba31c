"""Who guesses, and what a guesser is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dflash.decode.draft import EMPTY, Draft
from dflash.model.batch import Forward

if TYPE_CHECKING:
    from dflash.decode.session import Session
    from dflash.decode.strategy import Strategy

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

    def snapshot(self) -> Any:
        """Remember what it knows of the text so far, to be handed to `Drafter.start`; has a ``close()``, or is None."""
        ...

    def close(self) -> None:
        """Give back what it holds; called once, whatever happened."""
        ...


class Drafter(Protocol):
    """Guesses what comes next; is never believed. Holds settings, no request; equal drafters work together.

    Attributes
    ----------
    instant : bool
        Whether a guess takes next to no time.
    """

    instant = False

    def prepare(self, model: Any) -> None:
        """Load what it needs to guess for a model, in the thread that owns the model; harmless if done before.

        Raises
        ------
        DFlashError
            If it can't guess for this model; one sentence says why.
        """

    def start(self, session: Session, model: Any, snapshot: Any = None) -> Drafting:
        """Begin with a session.

        Parameters
        ----------
        session : Session
            ``session.n_read`` tokens of its prompt have been read before: by others, whose `snapshot` may be there.
        model : Model
            That the session runs on.
        snapshot : optional
            What `Drafting.snapshot` of an equal drafter gave at that place; None if it has seen nothing of them.
        """
        ...

    def propose(self, draftings: Sequence[Drafting], rooms: Sequence[int]) -> list[Draft]:
        """Guess for several sessions at once; in this default, one after another. An exception ends them all."""
        return [drafting.propose(room) for drafting, room in zip(draftings, rooms, strict=True)]

    def __or__(self, recovery: Any) -> Strategy:
        """Watch over it: a strategy with this recovery."""
        from dflash.decode.strategy import Strategy

        return Strategy(self) | recovery


@dataclass(frozen=True)
class Nothing(Drafter):
    """Guesses nothing: plain decoding."""

    def start(self, session: Session, model: Any, snapshot: Any = None) -> Drafting:  # noqa: ARG002
        """There is nothing to remember of any session."""
        return _SILENT


class _Silent:
    capture: tuple[int, ...] = ()

    def propose(self, room: int) -> Draft:  # noqa: ARG002
        return EMPTY

    def observe(self, out: Forward, rows: Rows) -> None:
        pass

    def snapshot(self) -> None:
        pass

    def close(self) -> None:
        pass


_SILENT = _Silent()
