"""Requests of a study to a model in this process."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dflash.decode.drafting.drafter import Strategy
from dflash.evaluation.measuring import n_warm_up
from dflash.evaluation.prompt_sets import Case
from dflash.evaluation.row import seconds_of, timed
from dflash.evaluation.study.record import setup_of, strategy_setup
from dflash.evaluation.study.runners.base import PARTS, steps_of
from dflash.evaluation.study.runners.context import FillerText, repeated
from dflash.evaluation.study.runners.machine import MachineState
from dflash.evaluation.tables import Values, of_request
from dflash.evaluation.traces.filler import ordinary_text
from dflash.generation.result import Generation
from dflash.json_types import JsonMapping

if TYPE_CHECKING:
    from dflash.lm import LM


class LocalRunner:
    """A loaded model as a `Runner`."""

    def __init__(self, lm: "LM") -> None:
        self._lm, self._state = lm, MachineState(lm)
        self.sequences = lm.model.pools.slots

    def setup(self) -> Values:
        """Return model, device and versions, with the hashes of the model's files."""
        return setup_of(self._lm)

    def prepare(self, strategy: Strategy) -> Values:
        """Load what a strategy needs, and return it with the hashes of its files."""
        self._lm.prepare(strategy)
        return strategy_setup(self._lm, strategy)

    def n_warm_up(self, max_tokens: int) -> int:
        """Return the output tokens of a warm-up request."""
        return n_warm_up(self._lm, max_tokens)

    def filler(self, n: int) -> FillerText:
        """Return ordinary text of `n` tokens."""
        ids = repeated(self._lm.tokenizer.encode(ordinary_text(), special=False), n)
        return FillerText(ids, self._lm.tokenizer.decode(ids))

    def answer(self, cases: Sequence[Case], strategy: Strategy, max_tokens: int, settings: JsonMapping) -> list[Values]:
        """Answer some prompts in one batch; their options are those of the first."""
        given = {**settings, **cases[0].options, "recover": (), "prefix_cache": False}
        prompts = [case.prompt for case in cases]
        generations = self._lm.generate(prompts, strategy=strategy, max_tokens=max_tokens, **given)
        self._state.sample()
        return list(map(_row, generations))

    def machine(self) -> Values:
        """Return the state of the machine since the last call."""
        return self._state.as_dict()


def _row(generation: Generation) -> Values:
    steps = [
        (len(step.tokens), step.accepted, step.draft.depth, round(seconds_of(step), 6))
        for step in generation.steps
        if step.tokens
    ]
    seconds = {f"{part}_seconds": sum(getattr(step, part) for step in timed(generation)) for part in PARTS}
    return {**of_request(generation), **steps_of(generation.tokens, steps), **seconds}
