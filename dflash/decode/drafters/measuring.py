"""Measure how long steps take, in short parts.

Measuring runs forwards of the model, in the thread that owns it. So that other sessions go on meanwhile, everything that
measures is a generator (`Parts`): what lies between two `yield` is short, and holds no memory of the model afterwards.
"""

from __future__ import annotations

from collections.abc import Generator, MutableMapping, Sequence
from contextlib import closing
from itertools import accumulate
from math import inf
from statistics import median
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from dflash.decode.drafters.adaptive.latency import DraftLatency, ForwardLatency, whole
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.engine import Engine
from dflash.decode.session import Session
from dflash.decode.step import Step
from dflash.errors import PoolExhausted
from dflash.kernels.ragged import PENDING
from dflash.model.batch import Span

_ROWS = (1, 2, 4, 5, 8, 9, 16, 17, 32, 64)
_REPEATS = 3
_TEXTS, _STEPS = {"cpu": 5, "cuda": 2}, {"cpu": 1, "cuda": 3}
"""Texts that measure a strategy, each in a part of its own, and the steps of one. Steps of a GPU overlap: one is too few."""

T = TypeVar("T")
Parts = Generator[None, None, T]
"""Work in short parts, which returns its result at the end."""


def finished(parts: Parts[T]) -> T:
    """Run all parts, one after another, and return the result."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            return end.value


def measured_forwards(model: Any, capture: tuple[int, ...] = ()) -> Parts[ForwardLatency]:
    """Measure how long forwards take, one in each part; what is common is assumed where all memory is in use.

    Parameters
    ----------
    model : Model
        Is run for a moment.
    capture : tuple of int
        Layers whose outputs are wanted of its forwards.
    """
    rows = [n for n in _ROWS if n <= min(model.max_rows, PENDING)]
    try:
        return ForwardLatency(rows, (yield from _measured(model, rows, capture)))
    except PoolExhausted:
        return ForwardLatency(rows, [1e-3 * (1 + n / 16) for n in rows])


def measured_steps(model: Any, strategy: Strategy) -> Parts[list[Step]]:
    """Run some steps of texts of no meaning, a text in each part; there are none if there is no memory for it."""
    found: list[Step] = []
    for _ in range(_TEXTS[model.device]):
        found += _steps(model, strategy, _STEPS[model.device])
        yield
    return found


def measured_extra(
    model: Any,
    strategies: Sequence[Strategy],
    forwards: ForwardLatency,
    seen: MutableMapping[Any, tuple[int, float] | None] | None = None,
) -> Parts[DraftLatency]:
    """Let a drafter guess for a moment, in shapes from small to large: on a CPU, what that takes beside the forward.

    Parameters
    ----------
    model : Model
    strategies : sequence of Strategy
        The drafter in each shape.
    forwards : ForwardLatency
        Of the same model.
    seen : mapping, optional
        What was measured before, by `form_of` the drafter and the shape: it is not measured again, and what is measured is
        added. A value is None where nothing was guessed.
    """
    seen = {} if seen is None else seen
    known = {}
    for strategy in strategies:
        key = form_of(strategy.drafter), strategy.shape
        if key not in seen:
            seen[key] = _point((yield from measured_steps(model, strategy)), model.device, forwards)
        point = seen[key]
        if point is not None:
            known[point[0]] = point[1]
    # more guesses can't take less time: where they seem to, a part of a step was not seen
    sizes = sorted(known)
    return DraftLatency(list(zip(sizes, accumulate((known[n] for n in sizes), max), strict=True)))


def form_of(drafter: Any) -> Any:
    """Describe what a drafter costs: the drafter itself, or the kinds of those that it is made of and that take time.

    Settings of parts that take no time, such as how much a lookup guesses, make no other form.
    """
    parts = getattr(drafter, "parts", ())
    if not parts:
        return drafter
    return type(drafter), tuple(dict.fromkeys(form_of(part) for part in parts if not getattr(part, "instant", False)))


def _steps(model: Any, strategy: Strategy, n: int) -> list[Step]:
    """The first `n` steps of a text that write."""
    session = Session([0, 0], strategy=strategy, max_tokens=min((n + 1) * (PENDING + 1), model.config.context - 2))
    found: list[Step] = []
    with closing(Engine(model).run([session])) as events:
        for event in events:
            if event.step.tokens:
                found.append(event.step)
            if len(found) == n:
                break
    return found


def _point(steps: Sequence[Step], device: str, forwards: ForwardLatency) -> tuple[int, float] | None:
    """Guesses of a step, and the seconds with them; None if nothing was guessed."""
    n = max((step.drafted for step in steps), default=0)
    full = [step for step in steps if step.drafted == n]
    if not n:
        return None
    if device == "cpu":
        # held against their own forwards, which other work on the machine slows down as much
        return n, forwards.seconds(1 + n) * median((whole(step) - step.forward) / step.forward for step in full)
    return n, min(map(whole, full))


def _measured(model: Any, rows: list[int], capture: tuple[int, ...]) -> Parts[list[float]]:
    """The shortest of a few forwards each, in turns, so that other work on the machine meets all alike."""
    times = [inf] * len(rows)
    for _ in range(_REPEATS):
        for i, n in enumerate(rows):
            times[i] = min(times[i], _forward(model, n, capture))
            yield
    # none takes longer than one of more rows, or than so many of fewer rows: where it seems to, something came in between
    return [min(-(-n // m) * seconds for m, seconds in zip(rows, times, strict=True)) for n in rows]


def _forward(model: Any, n: int, capture: tuple[int, ...]) -> float:
    """Seconds of a forward with `n` rows, begun when the device has nothing else to do."""
    with closing(model.state()) as state:
        state.reserve(n)
        span = Span(state, np.zeros(n, np.int32), np.arange(-1, n - 1, dtype=np.int32))
        model.finish()
        began = perf_counter()
        model.forward([span], capture=capture)
        model.finish()
        seconds = perf_counter() - began
        state.commit([])
    return seconds
