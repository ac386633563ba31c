"""Run a study, cell by cell."""

import os
from collections.abc import Mapping, Sequence
from itertools import cycle, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dflash.decode.sampling.params import check_whole
from dflash.errors import RequestError
from dflash.evaluation.compare import Strategies, cases_of, named
from dflash.evaluation.measuring import bar, n_warm_up
from dflash.evaluation.prompt_sets import Case
from dflash.evaluation.row import Row, timed
from dflash.evaluation.study import record as records
from dflash.evaluation.study.context import with_context
from dflash.evaluation.study.grid import Cell, fingerprint, grid
from dflash.evaluation.study.machine import MachineState
from dflash.evaluation.study.measures import measured
from dflash.evaluation.study.study import Study
from dflash.evaluation.tables import Values, requests
from dflash.generation.prompts import Prompt
from dflash.generation.result import Generation
from dflash.json_types import JsonMapping

if TYPE_CHECKING:
    from dflash.lm import LM


class _Run(NamedTuple):
    """Settings that all cells share."""

    lm: "LM"
    cases: Sequence[Case]
    max_tokens: int
    sampling: JsonMapping
    machine: MachineState


def study(
    lm: "LM",
    strategies: Strategies,
    prompts: Prompt | Sequence[Prompt | Case],
    *,
    temperatures: Sequence[float] = (0.0,),
    seeds: int = 1,
    batch: Sequence[int] = (1,),
    context: Sequence[int] = (0,),
    max_tokens: int = 64,
    draft: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    progress: bool = False,
    **sampling: Any,
) -> Study:
    """Measure strategies over a grid of temperatures, batch sizes and context lengths.

    Each cell runs all prompts with all seeds, without the prefix cache, after a warm-up that is not measured. Cells that
    differ in the strategy alone follow each other; the first strategy is their baseline.

    Parameters
    ----------
    lm : LM
        Model to run. Other requests at the same time distort times, not acceptance.
    strategies : sequence or mapping
        As for `dflash.compare`; the first one, usually ``"plain"``, is the baseline of speed.
    prompts : prompt, or sequence of prompts and `Case`
        As for `dflash.compare`, of which the first turns are used.
    temperatures, batch, context : sequence
        Axes of the grid. `batch` is the number of requests at a time, at most the model's sequences. `context` is the number
        of tokens of ordinary text before each prompt.
    seeds : int
        Seeds of each prompt at temperatures above 0: 0, 1 and so on.
    max_tokens : int
        Maximum number of output tokens of each request.
    draft : str, optional
        Draft model, or file of the MTP head, for strategies given by name.
    folder : path, optional
        Folder for the records, one JSON file for each cell. Cells that it holds already are not run again, so that a study
        that was interrupted continues; records of another study in it are an error.
    progress : bool
        Draw a progress bar on stderr.
    **sampling
        Further fields of `Sampling`; they override those of a case.

    Returns
    -------
    Study
        Records with tables and plots.

    Raises
    ------
    RequestError
        If an axis or an argument is out of range, or `folder` holds records of another model, machine or setting.
    """
    check_whole("max_tokens", max_tokens, 1)
    for name in ("temperature", "seed", "strategy", "recover", "stream", "dump"):
        if name in sampling:
            raise RequestError(f"study: takes no {name}; temperatures, seeds and strategies are axes of the grid")
    chosen, cases = named(strategies, draft, {}), list(cases_of(prompts))
    cells = list(grid(chosen, temperatures, seeds, batch, context))
    if not chosen or not cases or len({case.name for case in cases}) < len(cases):
        raise RequestError(f"study: needs strategies, and prompts of different names, got {len(chosen)} and {len(cases)}")
    if max(batch) > lm.model.pools.slots:
        raise RequestError(f"study: batch {max(batch)} exceeds the model's {lm.model.pools.slots} sequences; load with more")
    shared = {
        "setup": records.setup_of(lm),
        "prompts": {case.name: fingerprint([case.prompt, dict(case.options), dict(case.sampling)]) for case in cases},
        "max_tokens": max_tokens,
        "sampling": sampling,
        "prefix_cache": False,
        "warm_up_tokens": n_warm_up(lm, max_tokens),
    }
    run = _Run(lm, cases, max_tokens, sampling, MachineState(lm))
    at = None if folder is None else Path(folder)
    if at is not None:
        at.mkdir(parents=True, exist_ok=True)
    about: dict[str, Values] = {}
    for name, strategy in chosen.items():
        lm.prepare(strategy)
        about[name] = records.strategy_setup(lm, strategy)
    found: list[records.Record] = []
    with bar(progress, len(cells), "cells") as shown:
        for number, cell in enumerate(cells):
            key = {**cell.axes, **about[cell.name], "seeds": list(cell.seeds)}
            known = None if at is None else _known(records.path_of(at, key), shared, key["code"])
            if known is None:
                rows = _measure(run, cell)
                known = {"format": records.FORMAT, "number": number, "cell": key, **shared}
                known |= {"machine": run.machine.as_dict(), "requests": rows, "measures": measured(rows)}
                if at is not None:
                    records.write(records.path_of(at, key), known)
            found.append({**known, "number": number})
            shown.update()
    return Study(found)


def _known(path: Path, shared: JsonMapping, code: Mapping[str, str]) -> records.Record | None:
    """Return the record of an earlier run of a cell; None if there is none."""
    if not path.exists():
        return None
    record = records.read(path)
    for name, value in shared.items():
        if fingerprint(record[name]) != fingerprint(value):
            raise RequestError(f"study: {path} was measured with another {name}; use another folder")
    before = record["cell"].get("code", {})
    for module in before | code:
        if before.get(module) != code.get(module):
            raise RequestError(f"study: {path} was measured with another file of {module}; remove it, or use another folder")
    return record


def _measure(run: _Run, cell: Cell) -> list[Values]:
    """Return a row for each request of a cell."""
    lm, max_tokens = run.lm, run.max_tokens
    cases = [case._replace(prompt=with_context(lm, case.prompt, cell.context)) for case in run.cases]

    def write(group: Sequence[Case], n: int, seed: int) -> list[Generation]:
        settings = {**group[0].sampling, **run.sampling, "temperature": cell.temperature, "seed": seed, **group[0].options}
        prompts = [case.prompt for case in group]
        return lm.generate(prompts, strategy=cell.strategy, recover=(), max_tokens=n, prefix_cache=False, **settings)

    groups = [
        alike[first : first + cell.batch]
        for _, same in groupby(cases, key=lambda case: repr((case.sampling, case.options)))
        for alike in [list(same)]
        for first in range(0, len(alike), cell.batch)
    ]
    write(groups[0], n_warm_up(lm, max_tokens), 0)
    row = Row(cell.name, cell.strategy)
    for round_, seed in enumerate(cell.seeds):
        for group in groups:
            full = list(islice(cycle(group), cell.batch))  # as many at a time in the last group as in others
            generations = write(full, max_tokens, seed)[: len(group)]
            run.machine.sample()
            for generation in generations:
                row.add(round_, generation)
    found = requests([row], [case.name for case in cases], [case.category for case in cases])
    rows = zip(found, row.generations, strict=True)
    return [_of_cell(values) | _steps_of(generation) for values, generation in rows]


def _of_cell(values: Values) -> Values:
    """Return a row without what the cell has already, or what compares strategies, which are in other cells."""
    return {name: value for name, value in values.items() if name not in ("strategy", "round", "same_text")}


def _steps_of(generation: Generation) -> Values:
    steps, parts = [step for step in generation.steps if step.tokens], ("propose", "forward", "verify")
    return {
        "step_tokens": [len(step.tokens) for step in steps],
        "step_accepted": [step.accepted for step in steps],
        "step_depths": [step.draft.depth for step in steps],
        **{f"{part}_seconds": sum(getattr(step, part) for step in timed(generation)) for part in parts},
    }
