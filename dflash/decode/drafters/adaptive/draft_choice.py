"""What is bet on the next step, what it is expected to give, and what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dflash.decode.drafters.adaptive.draft_option import DraftOption
    from dflash.decode.step import Step
    from dflash.decode.view import SessionView


class DraftChoice(NamedTuple):
    """Guesses of one session's step.

    Parameters
    ----------
    option : DraftOption or None
        None is plain.
    n : int
        Guesses to ask for.
    rate : float
        Tokens a second, of all sessions, that the best choice is expected to give.
    ready : bool
        Whether the step before was of the same kind, so that a drafter has read all but the last tokens, and a GPU is ahead.
    """

    option: DraftOption | None
    n: int = 0
    rate: float = 0.0
    ready: bool = True


class BatchLoad(NamedTuple):
    """Rows and tokens that the other sessions have in a step."""

    rows: float = 0.0
    tokens: float = 0.0


class PlacedChoice(NamedTuple):
    """A bet, and where to see what became of it.

    Parameters
    ----------
    bet : DraftChoice
    drafted : int
        Guesses that were made.
    session : Session
    n_steps : int
        Steps of the session before it.
    """

    bet: DraftChoice
    drafted: int
    session: SessionView
    n_steps: int

    @property
    def step(self) -> Step | None:
        """The step that was made of it, once it is over."""
        steps, held = self.session.steps, self.session.held_steps
        if self.n_steps < len(steps):
            return steps[self.n_steps]
        return held[self.n_steps - len(steps)] if self.n_steps < len(steps) + len(held) else None
