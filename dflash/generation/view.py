"""Protocol of a generation for its display, which `dflash.generation.result.Generation` imports."""

from typing import Protocol

from dflash.decode.drafting.drafter import Strategy
from dflash.decode.recoveries.intervention import Intervention
from dflash.decode.step import Step
from dflash.generation.timings import Timings, Usage
from dflash.generation.token_texts import TokenText


class GenerationView(Protocol):
    """Members of a `Generation` that its display reads; the meaning of each stands there."""

    @property
    def text(self) -> str:
        """See `Generation`."""
        ...

    @property
    def finish_reason(self) -> str:
        """See `Generation`."""
        ...

    @property
    def seed(self) -> int:
        """See `Generation`."""
        ...

    @property
    def strategy(self) -> Strategy:
        """See `Generation`."""
        ...

    @property
    def usage(self) -> Usage:
        """See `Generation`."""
        ...

    @property
    def timings(self) -> Timings:
        """See `Generation`."""
        ...

    @property
    def steps(self) -> list[Step]:
        """See `Generation`."""
        ...

    @property
    def pieces(self) -> list[str]:
        """See `Generation`."""
        ...

    @property
    def vocabulary(self) -> dict[int, TokenText]:
        """See `Generation`."""
        ...

    @property
    def interventions(self) -> list[Intervention]:
        """See `Generation`."""
        ...

    @property
    def warnings(self) -> list[str]:
        """See `Generation`."""
        ...

    @property
    def draft_vocab_steps(self) -> dict[int, int]:
        """See `Generation`."""
        ...

    @property
    def tokens_per_step(self) -> float:
        """See `Generation`."""
        ...

    @property
    def acceptance(self) -> float | None:
        """See `Generation`."""
        ...

    @property
    def acceptance_by_position(self) -> list[float]:
        """See `Generation`."""
        ...
