"""The choice of a draft for one step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dflash.decode.drafters.adaptive.draft_option import DraftOption
    from dflash.decode.step import Step
    from dflash.decode.view import SessionView


class DraftChoice(NamedTuple):
    """Draft of one session in one step.

    Parameters
    ----------
    option : DraftOption or None
        The drafter; None for a plain step.
    n : int
        Number of draft tokens.
    rate : float
        Expected tokens a second of all sessions.
    ready : bool
        True if the step before used the same option: then the drafter has few tokens to read, and steps of a GPU overlap.
    """

    option: DraftOption | None
    n: int = 0
    rate: float = 0.0
    ready: bool = True


class BatchLoad(NamedTuple):
    """Average rows and tokens of the other sessions in a step."""

    rows: float = 0.0
    tokens: float = 0.0


class PlacedChoice(NamedTuple):
    """A choice and the step that it belongs to.

    Parameters
    ----------
    choice : DraftChoice
    drafted : int
        Draft tokens that are verified.
    session : SessionView
    n_steps : int
        Number of the session's steps before this one.
    """

    choice: DraftChoice
    drafted: int
    session: SessionView
    n_steps: int

    @property
    def step(self) -> Step | None:
        """The step; None until it has finished."""
        steps, held = self.session.steps, self.session.held_steps
        if self.n_steps < len(steps):
            return steps[self.n_steps]
        return held[self.n_steps - len(steps)] if self.n_steps < len(steps) + len(held) else None
