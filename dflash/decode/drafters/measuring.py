"""Measure latencies of steps, in short parts.

Measuring runs forwards of the model, in the thread that owns it. So that other sessions continue meanwhile, everything that
measures is a generator (`Parts`): the work between two `yield` is short and holds no memory of the model afterwards.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, MutableMapping, Sequence
from contextlib import closing
from itertools import accumulate
from math import inf
from statistics import median
from time import perf_counter
from typing import TypeVar

import numpy as np

from dflash.decode.drafters.adaptive.latency import DraftLatency, ForwardLatency, step_seconds
from dflash.decode.drafting.drafter import Drafter, Strategy
from dflash.decode.engine import Engine
from dflash.decode.session import Session
from dflash.decode.step import Step
from dflash.errors import PoolExhausted
from dflash.kernels.ragged import PENDING
from dflash.model.batch import Span
from dflash.model.protocols.target import TargetModel

_ROWS = (1, 2, 4, 5, 8, 9, 16, 17, 32, 64)
_REPEATS = 3
_SESSIONS, _STEPS = {"cpu": 5, "cuda": 2}, {"cpu": 1, "cuda": 3}
"""Sessions that measure a strategy, each in a part of its own, and steps of each. One is too few on a GPU: steps overlap."""

T = TypeVar("T")
Parts = Generator[None, None, T]
"""Work in short parts that returns a result."""


def finished(parts: Parts[T]) -> T:
    """Run all parts, one after another, and return the result."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            return end.value


def measured_forwards(model: TargetModel, capture: tuple[int, ...] = ()) -> Parts[ForwardLatency]:
    """Measure the latencies of forwards, one in each part. If all memory is in use, typical values are assumed.

    Parameters
    ----------
    model : TargetModel
        Idle while a part runs.
    capture : tuple of int
        Layers that the forwards capture.
    """
    rows = [n for n in _ROWS if n <= min(model.max_rows, PENDING)]
    try:
        return ForwardLatency(rows, (yield from _measured(model, rows, capture)))
    except PoolExhausted:
        return ForwardLatency(rows, [1e-3 * (1 + n / 16) for n in rows])


def measured_steps(model: TargetModel, strategy: Strategy) -> Parts[list[Step]]:
    """Run a few steps of sessions with a dummy prompt, one session in each part. Empty if there is no memory for it."""
    found: list[Step] = []
    for _ in range(_SESSIONS[model.device]):
        found += _steps(model, strategy, _STEPS[model.device])
        yield
    return found


def measured_extra(
    model: TargetModel,
    strategies: Sequence[Strategy],
    forwards: ForwardLatency,
    seen: MutableMapping[Hashable, tuple[int, float] | None] | None = None,
) -> Parts[DraftLatency]:
    """Measure the steps of a drafter in shapes from small to large: on a CPU without the forward, on a GPU as a whole.

    Parameters
    ----------
    model : TargetModel
    strategies : sequence of Strategy
        The drafter in each shape.
    forwards : ForwardLatency
        Latencies of the same model.
    seen : mapping, optional
        Results by `form_of` the drafter and the shape. Those that are there are not measured again; new ones are added. A
        value is None if the drafter made no draft.
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
    # a larger draft takes at least as long: a smaller value was measured with a part of the step missing
    sizes = sorted(known)
    return DraftLatency(list(zip(sizes, accumulate((known[n] for n in sizes), max), strict=True)))


def form_of(drafter: Drafter) -> Hashable:
    """Return a key for drafters of equal latency: the drafter itself, or the class with the keys of its parts.

    Instant parts are left out, so their settings make no difference.
    """
    parts = getattr(drafter, "parts", ())
    if not parts:
        return drafter
    return type(drafter), tuple(dict.fromkeys(form_of(part) for part in parts if not getattr(part, "instant", False)))


def _steps(model: TargetModel, strategy: Strategy, n: int) -> list[Step]:
    """Return the first `n` steps that decode tokens."""
    max_tokens = min((n + 1) * (PENDING + 1), model.config.context - 2)
    session = Session([0, 0], strategy=strategy, max_tokens=max_tokens, use_prefix_cache=False)
    found: list[Step] = []
    with closing(Engine(model).run([session])) as events:
        for event in events:
            if event.step.tokens:
                found.append(event.step)
            if len(found) == n:
                break
    return found


def _point(steps: Sequence[Step], device: str, forwards: ForwardLatency) -> tuple[int, float] | None:
    """Return the draft tokens of the largest steps and their seconds; None if there were no draft tokens."""
    n = max((step.drafted for step in steps), default=0)
    full = [step for step in steps if step.drafted == n]
    if not n:
        return None
    if device == "cpu":
        # relative to the forward of the same step, which other work on the machine slows as much
        return n, forwards.seconds(1 + n) * median((step_seconds(step) - step.forward) / step.forward for step in full)
    return n, min(map(step_seconds, full))


def _measured(model: TargetModel, rows: list[int], capture: tuple[int, ...]) -> Parts[list[float]]:
    """Return the shortest of a few forwards for each number of rows. They take turns, so disturbances affect all alike."""
    times = [inf] * len(rows)
    for _ in range(_REPEATS):
        for i, n in enumerate(rows):
            times[i] = min(times[i], _forward(model, n, capture))
            yield
    # a forward takes at most as long as one of more rows, or as several of fewer rows: more is a disturbance
    return [min(-(-n // m) * seconds for m, seconds in zip(rows, times, strict=True)) for n in rows]


def _forward(model: TargetModel, n: int, capture: tuple[int, ...]) -> float:
    """Return the seconds of a forward with `n` rows on an idle device."""
    with closing(model.state()) as state:
        state.reserve(n)
        span = Span.chain(state, np.zeros(n, np.int32))
        model.finish()
        began = perf_counter()
        model.forward([span], capture=capture)
        model.finish()
        seconds = perf_counter() - began
        state.commit([])
    return seconds
