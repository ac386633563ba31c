"""Several drafters at work on one session."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import Drafter, DrafterState, Rows

if TYPE_CHECKING:
    from dflash.decode.view import SessionView
    from dflash.model.batch import Forward


class CompositeState:
    """All see what is read; the first that has a guess is heard.

    Attributes
    ----------
    parts : list of DrafterState
    by : str
        Whose guesses the last ones were.
    heard : int
        Which part that was.
    """

    by, heard = "", 0

    def __init__(self, parts: list[DrafterState]) -> None:
        self.parts = parts

    @property
    def capture(self) -> tuple[int, ...]:
        """What any of them wants to see."""
        return tuple(sorted({layer for part in self.parts for layer in part.capture}))

    def propose(self, max_draft: int) -> Draft:
        """The first guess."""
        return next((draft for part in self.parts if len(draft := part.propose(max_draft))), EMPTY)

    def observe(self, out: Forward, rows: Rows) -> None:
        """Let each see it."""
        for part in self.parts:
            part.observe(out, rows)

    def snapshot(self) -> CompositeSnapshot:
        """Remember what each knows."""
        with ExitStack() as stack:
            found = []
            for part in self.parts:
                found.append(part.snapshot())
                if found[-1] is not None:
                    stack.callback(found[-1].close)
            return CompositeSnapshot(found, stack.pop_all())

    def close(self) -> None:
        """Close each, whatever the others do."""
        with ExitStack() as stack:
            for part in self.parts:
                stack.callback(part.close)


class CompositeSnapshot:
    """What each of several drafters remembers; closed together."""

    def __init__(self, parts: list[Any], stack: ExitStack) -> None:
        self.parts, self._stack = parts, stack

    def close(self) -> None:
        """Let go of all."""
        self._stack.close()


def start_all(
    drafters: Sequence[Drafter], session: SessionView, model: Any, snapshot: CompositeSnapshot | None
) -> list[DrafterState]:
    """Begin with each drafter; with none if one fails."""
    known = snapshot.parts if snapshot is not None else [None] * len(drafters)
    with ExitStack() as stack:
        parts = []
        for drafter, part in zip(drafters, known, strict=True):
            parts.append(drafter.start(session, model, part))
            stack.callback(parts[-1].close)
        stack.pop_all()
    return parts
