"""Cells of a study: what is varied, and a name for each combination."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from dflash.decode.drafting.drafter import Strategy
from dflash.decode.sampling.params import Sampling, check_whole
from dflash.errors import RequestError
from dflash.evaluation.tables import Values


class Cell(NamedTuple):
    """One combination of a grid."""

    name: str
    strategy: Strategy
    temperature: float
    batch: int
    context: int
    seeds: tuple[int, ...]

    @property
    def axes(self) -> Values:
        """JSON values that name the cell within its study."""
        return {
            "strategy": self.name,
            "temperature": self.temperature,
            "batch": self.batch,
            "context": self.context,
        }


def grid(
    strategies: Mapping[str, Strategy],
    temperatures: Sequence[float],
    seeds: int,
    batch: Sequence[int],
    context: Sequence[int],
) -> Iterator[Cell]:
    """Yield all cells; those that are compared with each other, which differ in the strategy alone, follow each other.

    seeds: number of seeds at temperatures above 0; at 0 one is enough.
    """
    check_whole("study: seeds", seeds, 1)
    for axis, values in {"temperatures": temperatures, "batch": batch, "context": context}.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values or len(set(values)) < len(values):
            raise RequestError(f"study: {axis} must hold different values, at least one, got {values!r:.60}")
    for value in batch:
        check_whole("study: batch", value, 1)
    for value in context:
        check_whole("study: context", value, 0)
    samplings = [Sampling(temperature=value) for value in temperatures]
    for sampling, n_context, n_batch in product(samplings, context, batch):
        own_seeds = tuple(range(1 if sampling.greedy else seeds))
        for name, strategy in strategies.items():
            yield Cell(name, strategy, sampling.temperature, n_batch, n_context, own_seeds)


def fingerprint(values: object) -> str:
    """Return a short hash of JSON values."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
