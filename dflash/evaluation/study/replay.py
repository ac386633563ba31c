"""Recorded acceptance with prices that are measured anew: a cell that differs from another one in timing alone."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from dflash.evaluation.study.grid import fingerprint
from dflash.evaluation.study.record import Record
from dflash.evaluation.study.runners.base import PARTS
from dflash.evaluation.tables import Values
from dflash.model.numerics import Numerics

_CELL = ("expression", "shape", "verifier", "drafts", "code", "temperature", "context", "seeds")
_SHARED = ("max_tokens", "sampling")


def acceptance_key(record: Record) -> str | None:
    """Return a hash of all that acceptance depends on; batch, device and threads are not part of it.

    None if the model's file is not known, as on a server.
    """
    model = record["setup"]["model"]
    if model["sha256"] is None:
        return None
    of_cell = [record["cell"][name] for name in _CELL]
    of_model = model["sha256"], *(model.get(field.name, field.default) for field in fields(Numerics))
    return fingerprint([of_cell, [record[name] for name in _SHARED], record["prompts"], *of_model])


def source_of(wanted: Record, records: Iterable[Record]) -> Record | None:
    """Return a record with the acceptance of a cell that was measured in full; None if there is none."""
    key = acceptance_key(wanted)
    if key is None:
        return None
    return next((one for one in records if "replayed" not in one and acceptance_key(one) == key), None)


def replay(recorded: Sequence[Values], measured: Sequence[Values]) -> list[Values]:
    """Return rows with the steps of recorded requests and the prices of measured ones.

    A step costs what measured steps of the same draft depth took on average; between measured depths the cost is linear.
    Everything outside of steps is charged in proportion, and so are the parts of a step.
    """
    depths, prices = _prices(measured)
    inside = sum(sum(row["step_seconds"][1:]) for row in measured) or 1.0
    outside = sum(row["decode_seconds"] for row in measured) / inside
    shares = {f"{part}_seconds": sum(row[f"{part}_seconds"] for row in measured) / inside for part in PARTS}
    first = float(np.median([row["first_token_seconds"] for row in measured]))
    seconds: list[Any] = [np.interp(row["step_depths"], depths, prices).tolist() for row in recorded]
    return [_priced(row, each, outside, shares, first) for row, each in zip(recorded, seconds, strict=True)]


def source_facts(source: Record, n_measured: int) -> Values:
    """Return what a replayed record says of its acceptance and its prices."""
    setup = source["setup"]
    place = {name: setup[name] for name in ("commit", "cpu", "gpu")}
    return {"acceptance_of": {**place, "batch": source["cell"]["batch"]}, "priced_requests": n_measured}


def _prices(measured: Sequence[Values]) -> tuple[list[int], list[float]]:
    """Return draft depths in rising order, and the mean seconds of their steps; first steps, which prefill, do not count."""
    seconds = defaultdict[int, list[float]](list)
    for row in measured:
        for depth, each in list(zip(row["step_depths"], row["step_seconds"], strict=True))[1:]:
            seconds[depth].append(each)
    known: list[Any] = sorted(seconds.items()) or [(0, [0.0])]
    return [depth for depth, _ in known], [float(np.mean(each)) for _, each in known]


def _priced(row: Values, seconds: list[float], outside: float, shares: dict[str, float], first: float) -> Values:
    inside = sum(seconds[1:])
    decode = inside * outside
    return {
        **row,
        "first_token_seconds": first,
        "decode_seconds": decode,
        "tokens_per_second": sum(row["step_tokens"][1:]) / decode if decode else 0.0,
        "step_seconds": seconds,
        **{name: share * inside for name, share in shares.items()},
    }
