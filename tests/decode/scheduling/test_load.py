"""Arrival patterns with the measured costs of a 27B on an H200: throughput, first tokens and gaps of the policy."""

from types import SimpleNamespace

import numpy as np
import pytest
from costed_toy import CostedToy

from dflash.decode import engine as engine_module
from dflash.decode.engine import Engine
from dflash.decode.session import Session
from dflash.generation.load import MAX_STEP_MS

ROWS, STEP_MS = [1, 8, 16, 32, 64, 128], [5.1, 6.0, 7.0, 9.5, 18.6, 30.0]
TOKENS, PROMPT_MS = [0, 1, 512, 2048, 4096], [0.0, 30.5, 71.0, 193.0, 395.0]


@pytest.fixture
def simulated(monkeypatch):
    """Return an engine whose clock advances by what the forwards of a 27B take, and the clock."""

    def make(sequences):
        toy, clock = (
            CostedToy(pages=400 + 16 * sequences, slots=sequences, rows=4096 + 64, context=40_000),
            SimpleNamespace(now=0.0),
        )

        def forward(spans):
            n_prompt = sum(len(span.tokens) for span in spans if span.prefill)
            n_decode = sum(len(span.tokens) for span in spans if not span.prefill)
            clock.now += 1e-3 * np.interp(n_prompt, TOKENS, PROMPT_MS)
            clock.now += 1e-3 * np.interp(n_decode, [0, *ROWS], [0.0, *STEP_MS])

        toy.before_forward = forward
        monkeypatch.setattr(engine_module, "perf_counter", lambda: clock.now)
        return Engine(toy, chunk=4096, max_step=MAX_STEP_MS["cuda"] / 1e3), clock

    return make


def run(engine, clock, arrivals):
    """Return first tokens and gaps, in milliseconds, of sessions that arrive at their times."""
    waiting, times = sorted(arrivals, key=lambda each: each[0]), {session: [] for _, session in arrivals}
    while waiting or engine.busy:
        if not engine.busy:
            clock.now = max(clock.now, waiting[0][0])
        while waiting and waiting[0][0] <= clock.now:
            engine.add(waiting.pop(0)[1])
        for event in engine.step():
            if event.step.tokens:
                times[event.session].append(clock.now)
    first = np.array([1e3 * (times[session][0] - at) for at, session in arrivals])
    return first, np.concatenate([1e3 * np.diff(each) for each in times.values()])


@pytest.mark.parametrize(
    ("n", "rate", "p99", "longest"),
    [(1, 160, 6, 20), (8, 600, 150, 250), (32, 800, 250, 300), (64, 850, 250, 400), (128, 900, 300, 500)],
)
def test_many_at_once(simulated, n, rate, p99, longest):
    engine, clock = simulated(n)
    for _ in range(2):  # the first time costs are not known
        began = clock.now
        sessions = [Session([i % 13] * 1000, max_tokens=128) for i in range(n)]
        first, gaps = run(engine, clock, [(clock.now, session) for session in sessions])
        found = 128 * n / (clock.now - began)
    assert found >= rate
    assert np.percentile(gaps, 99) <= p99
    assert gaps.max() <= longest
    assert (np.diff(first) > -300).all(), "first tokens come in the order of arrival, to a step"


def test_a_long_prompt_beside_eight(simulated):
    engine, clock = simulated(9)
    alone, _ = run(engine, clock, [(0.0, Session([1] * 32_768, max_tokens=1))])
    running = [(clock.now, Session([i] * 100, max_tokens=900)) for i in range(8)]
    long = clock.now + 2.0, Session([1] * 32_768, max_tokens=1)
    first, gaps = run(engine, clock, [*running, long])
    assert first[-1] <= 1.35 * alone[0]
    assert gaps.max() <= 300
