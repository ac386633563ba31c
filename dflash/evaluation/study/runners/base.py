"""The protocol of what runs the requests of a study."""

from collections.abc import Sequence
from typing import Protocol

from dflash.decode.drafting.drafter import Strategy
from dflash.evaluation.prompt_sets import Case
from dflash.evaluation.study.grid import fingerprint
from dflash.evaluation.study.runners.context import FillerText
from dflash.evaluation.tables import Values
from dflash.json_types import JsonMapping


class Runner(Protocol):
    """Runs requests and describes what runs them. A value that a server does not give is None.

    Attributes
    ----------
    sequences : int
        Most requests at a time.
    """

    sequences: int

    def setup(self) -> Values:
        """Return model, device and versions; the same for all cells."""

    def prepare(self, strategy: Strategy) -> Values:
        """Prepare a strategy and return what its output and speed depend on. Called before the first request of it."""

    def n_warm_up(self, max_tokens: int) -> int:
        """Return the output tokens of a warm-up request."""

    def filler(self, n: int) -> FillerText:
        """Return ordinary text of `n` tokens."""

    def answer(self, cases: Sequence[Case], strategy: Strategy, max_tokens: int, settings: JsonMapping) -> list[Values]:
        """Answer some prompts at the same time, without a prefix cache, and return a row for each; see `steps_of`.

        settings: of sampling, with the seed.
        """

    def machine(self) -> Values | None:
        """Return the state of the machine since the last call; None if it is another one."""


PARTS = ("propose", "forward", "verify")
"""Parts of a step whose seconds are summed over a request."""


_COLUMNS = ("step_tokens", "step_accepted", "step_depths", "step_seconds")


def steps_of(token_ids: Sequence[int], steps: Sequence[tuple[int, int, int, float]]) -> Values:
    """Return the columns of a request that hold its output and steps.

    steps: number of tokens, of accepted draft tokens, length of the draft, and seconds, of each step that gave tokens.
    """
    columns = {name: [step[i] for step in steps] for i, name in enumerate(_COLUMNS)}
    return {"output": fingerprint(list(token_ids)), **columns}
