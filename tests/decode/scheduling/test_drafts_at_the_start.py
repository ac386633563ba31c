"""Requests that arrive together at a server on a simulated GPU: drafts cost next to nothing, from the first step on."""

import numpy as np
import pytest
import simulated_gpu
from simulated_gpu import Head, SimulatedGpu, install, server, together

from dflash.decode import warmup
from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.drafting.shapes import Chain
from dflash.decode.verifiers import SyntheticAcceptance
from dflash.kernels.cpu import warm_marker

GOLDEN = SyntheticAcceptance((0.73, 0.48, 0.31))
"""MTP of a 27B that thinks: 1.73, 2.21 and 2.52 tokens a step."""


@pytest.fixture
def started(monkeypatch):
    """Return an engine after a server's start, whose clock is that of its GPU. Graphs are captured in no time."""
    monkeypatch.setattr(simulated_gpu, "CAPTURE_MS", 0.0)

    def make(**arguments):
        gpu = SimulatedGpu(128)
        install(monkeypatch, gpu)
        monkeypatch.setattr(warmup, "perf_counter", lambda: gpu.now)
        monkeypatch.setattr(warm_marker, "is_known", lambda _: True)
        engine = server(gpu, **arguments)
        warmup.warm(engine, "a kind", lambda _: None)
        return engine

    return make


def rate(engine, n, depth):
    """Return tokens a second of `n` requests that arrive together."""
    strategy = Strategy(Head(engine.model), Chain(depth), verifier=GOLDEN) if depth else Plain()
    return together(engine, n, 200, 200, strategy)[0]


@pytest.mark.parametrize("n", [4, 8, 16, 32, 64, 128])
def test_drafts_are_hardly_ever_slower_than_plain_decoding(started, n):
    plain, engine = rate(started(), n, 0), started(draft_budget=True)
    found, again = rate(engine, n, 3), rate(engine, n, 3)
    assert min(found, again) >= 0.98 * plain
    if n <= 16:
        assert found >= 0.96 * max(plain, *(rate(started(), n, depth) for depth in (1, 2, 3)))


@pytest.mark.parametrize("n", [64, 128])
def test_trials_take_a_hundredth_of_the_time(started, n):
    """One of 128 sessions with three draft tokens would take the time of seven steps."""
    engine = started(draft_budget=True)
    steps = together(engine, n, 200, 200, Strategy(Head(engine.model), Chain(3), verifier=GOLDEN))[3]
    plain = np.median([seconds for seconds, (decoding, rows, _) in steps if decoding == rows == n])
    tried = [seconds - plain for seconds, (decoding, rows, prompt) in steps if decoding == n < rows and not prompt]
    assert sum(tried) <= 0.01 * sum(seconds for seconds, _ in steps)


@pytest.mark.parametrize(("n", "rate", "p99"), [(8, 585, 150), (32, 840, 248), (64, 860, 248), (128, 870, 248)])
def test_prompts_fill_the_steps_of_the_first_streams(started, n, rate, p99):
    found, _, gaps, _ = together(started(), n, 1000, 128)
    assert found >= rate
    assert np.percentile(1e3 * gaps, 99) <= p99
