"""Run a study, cell by cell."""

import os
from collections.abc import Mapping, Sequence
from itertools import cycle, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dflash.decode.sampling.params import check_whole
from dflash.errors import RequestError
from dflash.evaluation.compare import Strategies, cases_of, named
from dflash.evaluation.measuring import bar
from dflash.evaluation.prompt_sets import Case
from dflash.evaluation.study import record as records
from dflash.evaluation.study.grid import Cell, fingerprint, grid
from dflash.evaluation.study.measures import measured
from dflash.evaluation.study.replay import replay as replayed_rows
from dflash.evaluation.study.replay import source_facts, source_of
from dflash.evaluation.study.runners import LocalRunner, Runner, ServerRunner
from dflash.evaluation.study.runners.context import with_context
from dflash.evaluation.study.study import Study
from dflash.evaluation.tables import Values
from dflash.generation.prompts import Prompt
from dflash.json_types import JsonMapping

if TYPE_CHECKING:
    from dflash.lm import LM


class _Run(NamedTuple):
    """Settings that all cells share."""

    runner: Runner
    cases: Sequence[Case]
    max_tokens: int
    sampling: JsonMapping


def study(
    lm: "LM | str",
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
    replay: bool | str | os.PathLike[str] = False,
    progress: bool = False,
    **sampling: Any,
) -> Study:
    """Measure strategies over a grid of temperatures, batch sizes and context lengths.

    Each cell runs all prompts with all seeds, without the prefix cache, after a warm-up that is not measured. Cells that
    differ in the strategy alone follow each other; the first strategy is their baseline.

    Parameters
    ----------
    lm : LM or str
        Model to run, or the URL of a server of dflash that runs it. Other requests at the same time distort times, not
        acceptance. A server is given strategies by name and has the verifier that it was started with; unless it was started
        with ``--fixed-drafts``, it drafts fewer tokens where that is faster. What it does not say is None in the record.
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
    replay : bool or path
        Measure acceptance once for cells that differ in the batch alone; of the others, only the first batch of prompts is
        run, for the price of a step at each draft depth, and the recorded steps are charged with it. A path names records of
        the same file whose acceptance is used too, as of another device. Such records and rows are marked as replayed.
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
    runner: Runner = ServerRunner(lm) if isinstance(lm, str) else LocalRunner(lm)
    if max(batch) > runner.sequences:
        raise RequestError(f"study: batch {max(batch)} exceeds the model's {runner.sequences} sequences; load with more")
    shared = {
        "setup": runner.setup(),
        "prompts": {case.name: fingerprint([case.prompt, dict(case.options), dict(case.sampling)]) for case in cases},
        "max_tokens": max_tokens,
        "sampling": sampling,
        "prefix_cache": False,
        "warm_up_tokens": runner.n_warm_up(max_tokens),
    }
    run = _Run(runner, cases, max_tokens, sampling)
    at = None if folder is None else Path(folder)
    if at is not None:
        at.mkdir(parents=True, exist_ok=True)
        _known(next(at.glob("*.json"), at / "none"), shared, {})  # any record: those of one folder agree
    about = {name: runner.prepare(strategy) for name, strategy in chosen.items()}
    found: list[records.Record] = []
    recorded = [] if isinstance(replay, bool) else records.read_all(Path(replay))
    with bar(progress, len(cells), "cells") as shown:
        for number, cell in enumerate(cells):
            key = {**cell.axes, **about[cell.name], "seeds": list(cell.seeds)}
            known = None if at is None else _known(records.path_of(at, key), shared, key["code"])
            if known is None or ("replayed" in known and not replay):
                known = {"format": records.FORMAT, "number": number, "cell": key, **shared}
                source = source_of(known, [*found, *recorded]) if replay else None
                rows = _measure(run, cell, once=source is not None)
                if source is not None:
                    known["replayed"] = source_facts(source, len(rows))
                    rows = replayed_rows(source["requests"], rows)
                known |= {"machine": runner.machine(), "requests": rows, "measures": measured(rows)}
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
    for module in before | code if code else ():
        if before.get(module) != code.get(module):
            raise RequestError(f"study: {path} was measured with another file of {module}; remove it, or use another folder")
    return record


def _measure(run: _Run, cell: Cell, *, once: bool = False) -> list[Values]:
    """Return a row for each request of a cell; `once` runs a single batch of it."""
    filler = run.runner.filler(cell.context)
    cases = [case._replace(prompt=with_context(case.prompt, filler)) for case in run.cases]

    def answer(group: Sequence[Case], n: int, seed: int) -> list[Values]:
        settings = {**group[0].sampling, **run.sampling, "temperature": cell.temperature, "seed": seed}
        return run.runner.answer(group, cell.strategy, n, settings)

    groups = [
        alike[first : first + cell.batch]
        for _, same in groupby(cases, key=lambda case: repr((case.sampling, case.options)))
        for alike in [list(same)]
        for first in range(0, len(alike), cell.batch)
    ]
    answer(groups[0], run.runner.n_warm_up(run.max_tokens), 0)
    rows = []
    for seed in cell.seeds[:1] if once else cell.seeds:
        for group in groups[:1] if once else groups:
            full = list(islice(cycle(group), cell.batch))  # as many at a time in the last group as in others
            answers = answer(full, run.max_tokens, seed)[: len(group)]
            names = ({"prompt": case.name, "category": case.category} for case in group)
            rows += [{**name, **values} for name, values in zip(names, answers, strict=True)]
    return rows
