"""Preempted sessions of the demo model: real pages, recurrent states and drafters; every token as without."""

import numpy as np
import pytest
from scarce import run_in

from dflash.decode.drafters import Strategy
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model

SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.8, top_p=0.9, seed=5),
    Sampling(temperature=1.0, repetition_penalty=1.2, frequency_penalty=0.2, logprobs=2, seed=6),
]


@pytest.fixture(scope="module")
def loaded():
    return load_model("demo", LoadSettings(device="cpu", threads=1, context=1024, sequences=8))


@pytest.fixture(scope="module")
def text(loaded):
    return loaded.tokenizer.encode("def add(a, b):\n    return a + b\n\n\ndef multiply(a, b):\n    return a * b\n\n" * 12)


def alone(model, make):
    """The sessions, each after the other."""
    sessions = make()
    for session in sessions:
        list(Engine(model).stream(session))
    return sessions


def assert_same(got, want):
    for one, other in zip(got, want, strict=True):
        assert one.output_ids == other.output_ids
        assert one.logprobs == other.logprobs
        assert one.finish_reason == other.finish_reason == "length"
        assert [token for step in one.steps for token in step.tokens] == one.output_ids


def test_sessions_that_outgrow_the_pages(loaded, text):
    """Three sessions of two pages in the end, where three pages are free: the last one waits for the others."""
    names = ["plain", "mtp:2", "ddtree:8"]

    def sessions():
        return [
            Session(text[i : i + 190], strategy=Strategy.of(name), sampling=sampling, max_tokens=70)
            for i, (name, sampling) in enumerate(zip(names, SAMPLINGS, strict=True))
        ]

    want, got = alone(loaded.model, sessions), sessions()
    engine = run_in(loaded.model, 3, got)
    assert_same(got, want)
    assert got[0].n_preempted == 0
    assert engine.n_preempted == got[2].n_preempted > 0
    assert [step.accepted for step in got[1].steps if step.tokens] == [s.accepted for s in want[1].steps if s.tokens]


def test_preempted_at_any_step(loaded, text):
    """In prefill or decode, some of them often; drafters continue with their states, so that drafts are the same, too."""
    names = ["plain", "dflash", "mtp:2", "first(lookup,mtp:2)", "ddtree:8", "draft-model:2", "lookup"]
    rng = np.random.default_rng(3)

    def sessions():
        return [
            Session(
                text[7 * i : 7 * i + 60 + 10 * i],
                strategy=Strategy.named(name, **({"draft": "demo"} if "model" in name else {})),
                sampling=SAMPLINGS[i % 3],
                max_tokens=30,
            )
            for i, name in enumerate(names)
        ]

    def preempt(engine):
        for session in [session for session in engine._active if rng.random() < 0.35]:
            engine._preempt(session)

    want, got = alone(loaded.model, sessions), sessions()
    engine = run_in(loaded.model, 16, got, between=preempt)
    assert_same(got, want)
    assert engine.n_preempted > 15
    assert min(session.n_preempted for session in got) > 0
    for one, other, name in zip(got, want, names, strict=True):
        assert [s.accepted for s in one.steps if s.tokens] == [s.accepted for s in other.steps if s.tokens], name
