"""Measure latencies once for a model, in its thread, in short parts between which other sessions run."""

from collections.abc import Generator, Hashable, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from math import inf
from time import perf_counter
from typing import Any

import numpy as np

from dflash.decode.drafters.adaptive.cost_model import CostModel, Variant
from dflash.decode.drafting.diagnostics import most_drafted
from dflash.decode.drafting.drafter import Drafter, Strategy
from dflash.decode.engine import Engine
from dflash.decode.session import Session, Step
from dflash.errors import PoolExhausted
from dflash.kernels.ragged import PENDING
from dflash.model.attachments import Recent
from dflash.model.batch import Span
from dflash.model.protocols.target import TargetModel

ROWS = (1, 2, 4, 5, 8, 9, 16, 17, 24, 32, 48, 64)
"""Rows of measured forwards: those that fill a kernel's tile or a captured graph, and the next ones."""

REPEATS = 5
"""Measurements of a latency, of which the least counts. With three, beside other work, small forwards may seem slow."""

ENOUGH = 0.7
"""Seconds of forwards of one size, without disturbances, that are enough if there are two: long ones are disturbed little.
A model of 1.5 B parameters is measured in 15 CPU seconds in place of 53; of small models nothing is left out."""

_FULL = [n - 1 for n in ROWS if n % 2 == 0]


def measures_of(model: TargetModel) -> Recent[Hashable, Any]:
    """Return the cost models and latencies that were used last; bounded, since requests may name many strategies."""
    return model.attachments.setdefault("measures", Recent(64))


def measured_costs(strategies: Sequence[Strategy], model: TargetModel) -> Generator[None, None, CostModel]:
    """Return the cost model of prepared drafters and their largest shapes; measure the latencies that are not known yet."""
    measures, drafts = measures_of(model), [model.attachments.get(each.drafter) for each in strategies]
    layers = {layer for draft in drafts for layer in getattr(getattr(draft, "config", None), "target_layer_ids", ())}
    forwards = measures.recall(key := ("forwards", *sorted(layers)))  # on a GPU, each capture is another graph
    if forwards is None:
        forwards = yield from measured_forwards(model, key[1:])
        measures.keep(key, forwards)
    most = [most_drafted(model, each) for each in strategies]
    costs = CostModel(strategies, forwards, on_host=model.device == "cpu", most=most)
    _, costs.plain = yield from _step_ms(model, Strategy(), 0, forwards)
    for option in costs.options:
        yield from measure(option, model, forwards)
    return costs


def measured_forwards(model: TargetModel, capture: tuple[int, ...] = ()) -> Generator[None, None, list[float]]:
    """Return the milliseconds of forwards by rows, from 0. Beyond the measured rows they grow in proportion."""
    most = model.config.pending * max(model.pools.free_slots, 1)
    rows = [n for n in ROWS if n <= min(model.max_rows, most)]
    taken: list[list[float]] = [[] for _ in rows]  # seconds
    try:
        # in turns, so that other work affects all alike; small forwards more often, since it affects them most
        for i in (i for turn in range(16 * REPEATS) for i, n in enumerate(rows) if turn % min(n, 16) == 0):
            if len(taken[i]) > 1 and len(taken[i]) * min(taken[i]) > ENOUGH:
                continue
            with ExitStack() as states:
                spans = _new_spans(model, rows[i], states)
                model.finish()
                began = perf_counter()
                model.forward(spans, capture=capture)
                model.finish()
                taken[i].append(perf_counter() - began)
                for span in spans:
                    span.state.commit([])
            yield
        times = [1e3 * min(each) for each in taken]
    except PoolExhausted:
        times = [1.0 + n / 16 for n in rows]  # typical values, since all memory is in use
    # a forward takes at most as long as one of more rows, or as several of fewer rows: more is a disturbance
    times = [min(-(-n // m) * each for m, each in zip(rows, times, strict=True)) for n in rows]
    known = np.interp(np.arange(rows[-1]), rows, times).tolist()
    return known + [times[-1] / rows[-1] * n for n in range(rows[-1], model.max_rows + PENDING + 1)]


def _new_spans(model: TargetModel, n_rows: int, states: ExitStack) -> list[Span]:
    """Return spans of new sequences with `n_rows` pending rows in all; closing `states` closes the sequences."""
    spans = list[Span]()
    for start in range(0, n_rows, model.config.pending):
        state, n = states.enter_context(closing(model.state())), min(model.config.pending, n_rows - start)
        state.reserve(n)
        spans.append(Span.chain(state, np.zeros(n, np.int32)))
    return spans


def measure(option: Variant, model: TargetModel, forwards: Sequence[float]) -> Generator[None, None, None]:
    """Set the latencies of an option from those of a few sizes, which all options of its drafter share."""
    known: dict[int, float] = {}
    most = most_drafted(model, Strategy(option.drafter, option.shape))
    for size in (1,) if option.drafter.instant else _FULL[: 1 + sum(n < option.most for n in _FULL)]:
        n, ms = yield from _step_ms(model, Strategy(option.drafter, option.shape_of(min(size, most))), size, forwards)
        known[n] = max(ms, *known.values(), 1e-6)  # less than for a smaller draft: a part of the step was missing
    option.extra = np.interp(range(option.most + 1), list(known), list(known.values())).tolist()
    if model.device != "cpu":  # each size is captured at its first use, and its rows are rounded up
        option.extra = [ms if n in (0, *_FULL, option.most) else inf for n, ms in enumerate(option.extra)]


def _step_ms(
    model: TargetModel, strategy: Strategy, size: int, forwards: Sequence[float]
) -> Generator[None, None, tuple[int, float]]:
    """Return the draft tokens of a strategy's largest steps, and their milliseconds beside the forward."""
    on_host, measures, key = model.device == "cpu", measures_of(model), (_form(strategy.drafter), type(strategy.shape), size)
    known: tuple[int, float] | None = measures.recall(key)
    if known is not None:
        return known
    steps: list[Step] = []
    for _ in range(REPEATS):
        n = 1 if on_host else REPEATS  # steps of a GPU overlap
        most = min(PENDING * (n + 2), model.config.context - 2)
        session = Session([0, 0], strategy=strategy, max_tokens=most, use_prefix_cache=False)
        with closing(Engine(model).run([session])) as events:
            steps += islice((event.step for event in events if event.step.tokens), n)
        yield
    if not steps:
        return size, forwards[1]  # all memory is in use
    n = max(step.drafted for step in steps)
    parts = [(step.propose + step.verify + step.commit, step.forward) for step in steps if step.drafted == n]
    # on a GPU, a draft and the forward before it overlap
    ms = min(1e3 * own if on_host else 1e3 * (own + forward) - forwards[1 + n] for own, forward in parts)
    measures.keep(key, (max(n, 1), ms))
    return max(n, 1), ms


def _form(drafter: Drafter) -> Hashable:
    """Return a key that drafters of equal latency share: the settings of instant drafters make no difference."""
    parts = [_form(part) for part in getattr(drafter, "parts", ()) if not getattr(part, "instant", False)]
    return (type(drafter), *dict.fromkeys(parts)) if parts or getattr(drafter, "instant", False) else drafter
