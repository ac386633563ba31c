"""Differences of two studies, or of two records."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dflash.cli.terminal import table
from dflash.errors import RequestError
from dflash.evaluation.study import record as records
from dflash.evaluation.study.bootstrap import interval, ratio, resampled
from dflash.evaluation.study.measures import acceptance_pairs, rate_pairs
from dflash.evaluation.study.tables import AXES

_SAME_SPEED = 1.1
"""Ratio up to which two copy bandwidths count as equal: on an idle machine they vary by a few percent."""

_HEAD = ("cell", "acceptance length", "difference", "tokens/s", "ratio")


def compare_records(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> str:
    """Compare two records, or the records of two folders: differences of the set-ups first, then of the measures.

    Differences and ratios have 95 % intervals by the bootstrap over prompts, which are paired where the prompts are equal.
    Two records are compared whatever their cells are; of two folders, cells with equal axes.
    """
    before, after = records.read_all(Path(first)), records.read_all(Path(second))
    if len(before) == len(after) == 1:
        pairs = [(before[0], after[0])]
    else:
        known = {_axes(record): record for record in before}
        pairs = [(known[_axes(record)], record) for record in after if _axes(record) in known]
    if not pairs:
        raise RequestError(f"study compare: {first} and {second} have no cell in common")
    found = dict.fromkeys(line for one, other in pairs for line in _set_up(one, other))
    lines = ["the set-ups are equal"] if not found else ["different set-ups:", *(f"  {line}" for line in found)]
    cells = table([_HEAD, *(_row(one, other) for one, other in pairs)], right=range(1, len(_HEAD)))
    return "\n".join([*lines, "", cells])


def _axes(record: records.Record) -> tuple[Any, ...]:
    return tuple(record["cell"][axis] for axis in AXES)


def _set_up(one: records.Record, other: records.Record) -> Iterator[str]:
    """Yield a line for each value of the set-ups that differs."""
    parts = ["setup", "cell", "prompts", "max_tokens", "sampling", "prefix_cache", "warm_up_tokens"]
    if _same_prompts(one, other):
        parts.remove("prompts")
    mine, others = (dict(_flat({part: record[part] for part in parts})) for record in (one, other))
    for name in dict.fromkeys((*mine, *others)):
        if mine.get(name) != others.get(name):
            yield f"{name}: {mine.get(name, 'none')!s:.60} | {others.get(name, 'none')!s:.60}"
    copies = [(record.get("machine") or {}).get("copy_bytes_per_second") or 0.0 for record in (one, other)]
    if all(copies) and max(copies) > _SAME_SPEED * min(copies):
        yield f"copy bandwidth: {copies[0] / 1e9:,.1f} | {copies[1] / 1e9:,.1f} GB/s"


def _same_prompts(one: records.Record, other: records.Record) -> bool:
    """Return whether both have the same prompts in the same order, whatever their names."""
    return list(one["prompts"].values()) == list(other["prompts"].values())


def _flat(values: records.Record, above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{above}{name} ")
        else:
            yield above + name, value


def _row(one: records.Record, other: records.Record) -> tuple[str, ...]:
    stream = 0 if _same_prompts(one, other) else 1
    cells = dict.fromkeys(" ".join(f"{value}" for value in _axes(record)) for record in (one, other))
    lengths, rates = ([pairs(record["requests"]) for record in (one, other)] for pairs in (acceptance_pairs, rate_pairs))
    with np.errstate(divide="ignore", invalid="ignore"):
        change, factor = ratio(lengths[1]) - ratio(lengths[0]), ratio(rates[1]) / ratio(rates[0])
        of_lengths = resampled(lengths[1], stream=stream) - resampled(lengths[0])
        of_rates = resampled(rates[1], stream=stream) / resampled(rates[0])
    return (
        " / ".join(cells),
        " / ".join(f"{1 + ratio(each):.2f}" for each in lengths),
        f"{change:+.2f} {_ends(interval(of_lengths), '+.2f')}",
        " / ".join(f"{ratio(each):,.1f}" for each in rates),
        f"{factor:.2f} {_ends(interval(of_rates), '.2f')}",
    )


def _ends(ends: list[float], form: str) -> str:
    return f"[{ends[0]:{form}}, {ends[1]:{form}}]"
