"""Ask one drafter after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dflash.decode.draft import EMPTY, Draft
from dflash.decode.drafter import Drafter, Drafting
from dflash.decode.drafters.together import Snapshots, Together, start_all
from dflash.errors import RequestError

if TYPE_CHECKING:
    from dflash.decode.session import Session


class FirstOf(Drafter):
    """The guess of the first drafter that has one, for each session; the others see what is read all the same.

    Parameters
    ----------
    *drafters : Drafter
        The one whose guesses are worth most first, such as ``FirstOf(PromptLookup(longest=16, shortest=8), MTP())``.

    Raises
    ------
    RequestError
        If there are none.
    """

    def __init__(self, *drafters: Drafter) -> None:
        if not drafters:
            raise RequestError("FirstOf: needs at least one drafter")
        self.drafters = drafters
        self.instant = all(drafter.instant for drafter in drafters)

    def prepare(self, model: Any) -> None:
        """Prepare each."""
        for drafter in self.drafters:
            drafter.prepare(model)

    def start(self, session: Session, model: Any, snapshot: Snapshots | None = None) -> Drafting:
        """Begin with each."""
        return Together(start_all(self.drafters, session, model, snapshot))

    def propose(self, draftings: Sequence[Together], rooms: Sequence[int]) -> list[Draft]:
        """Ask each drafter once, about all sessions that still have no guess."""
        drafts = [EMPTY] * len(draftings)
        for i, drafter in enumerate(self.drafters):
            open_ = [j for j, draft in enumerate(drafts) if not len(draft)]
            if not open_:
                break
            found = drafter.propose([draftings[j].parts[i] for j in open_], [rooms[j] for j in open_])
            for j, draft in zip(open_, found, strict=True):
                drafts[j] = draft
                draftings[j].by = type(drafter).__name__ if len(draft) else ""
        return drafts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FirstOf) and self.drafters == other.drafters

    def __hash__(self) -> int:
        return hash((FirstOf, self.drafters))

    def __repr__(self) -> str:
        return f"FirstOf({', '.join(map(repr, self.drafters))})"
