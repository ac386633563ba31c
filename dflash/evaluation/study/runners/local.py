"""Requests of a study to a model in this process."""

import json
import os
import statistics
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from dflash.decode.drafting.drafter import Strategy
from dflash.evaluation.environment import environment
from dflash.evaluation.measuring import n_warm_up
from dflash.evaluation.prompt_sets import Case
from dflash.evaluation.row import seconds_of, timed
from dflash.evaluation.study.record import strategy_setup
from dflash.evaluation.study.runners.base import PARTS, steps_of
from dflash.evaluation.study.runners.clocks import cpu_clocks, gpu_clocks
from dflash.evaluation.study.runners.context import FillerText, repeated
from dflash.evaluation.tables import Values, of_request
from dflash.evaluation.traces.filler import ordinary_text
from dflash.generation.result import Generation
from dflash.json_types import JsonMapping
from dflash.kernels import copy
from dflash.kernels.gpu.device import bus_id

if TYPE_CHECKING:
    from dflash.lm import LM


class MachineState:
    """Reads the clocks of a model's device after each batch of requests, while they are still those of the work."""

    def __init__(self, lm: "LM") -> None:
        device, threads = lm.model.device, lm.model.threads
        self._bus_id = lm.call(bus_id) if device == "cuda" else None
        self._copy = lm.call(partial(_bandwidth, device, self._bus_id, threads))
        self._read: list[dict[str, float]] = []

    def sample(self) -> None:
        """Read the clocks once."""
        found = cpu_clocks() if self._bus_id is None else gpu_clocks(self._bus_id)
        if found is not None:
            self._read.append(found)

    def as_dict(self) -> Values:
        """Return the copy bandwidth, the medians of what was read since the last call, and the load of the machine.

        ``clocks`` is None where the system does not say; ``sm_min_mhz`` or ``core_min_mhz`` is the slowest sample.
        ``load`` is the mean number of runnable processes of the last minute, these included.
        """
        read, self._read = self._read, []
        found = {name: statistics.median(one[name] for one in read) for name in (read[0] if read else ())}
        main = "core" if self._bus_id is None else "sm"
        if f"{main}_mhz" in found:
            found[f"{main}_min_mhz"] = min(one[f"{main}_mhz"] for one in read)
        load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
        return {"copy_bytes_per_second": self._copy, "clocks": found or None, "load": load}


@lru_cache(maxsize=8)
def _bandwidth(device: str, bus_id: str | None, threads: int) -> float:  # noqa: ARG001 - each GPU is measured
    """Return the bytes that a copy reads and writes in a second, measured once in a process; the GPU is the current one."""
    return copy.bandwidth(device, threads=threads)


class LocalRunner:
    """A loaded model as a `Runner`."""

    def __init__(self, lm: "LM") -> None:
        self._lm, self._state = lm, MachineState(lm)
        self.sequences = lm.model.pools.slots

    def setup(self) -> Values:
        """Return model, device and versions, with the hashes of the model's files."""
        return json.loads(json.dumps(environment(self._lm, fingerprint=True)))

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
