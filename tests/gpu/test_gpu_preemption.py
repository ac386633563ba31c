"""A sequence that is set aside in host memory and resumed on the GPU has the tokens that it has alone."""

import pytest
from scarce import run_in

from dflash.decode.drafters import Strategy
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model

SAMPLINGS = [Sampling(), Sampling(temperature=0.8, top_p=0.9, seed=5), Sampling(temperature=1.0, logprobs=1, seed=6)]


@pytest.fixture(scope="module", params=["f16", "f32", "q8_0", "q4_0"])
def loaded(request):
    return load_model("demo", LoadSettings(device="cuda", context=2048, sequences=3, kv=request.param))


@pytest.fixture(scope="module")
def text(loaded):
    return loaded.tokenizer.encode("def add(a, b):\n    return a + b\n\n\ndef multiply(a, b):\n    return a * b\n\n" * 20)


@pytest.mark.parametrize("name", ["plain", "dflash", "mtp:2", "first(lookup,mtp:2)"])
def test_the_youngest_of_three_sequences_waits(loaded, text, name):
    """Each has two pages in the end, and three are free: the last one, at least, waits and copies its state twice.

    A prefill of its output would round in another way. Steps of plain decoding are launched ahead until pages are short.
    """
    model = loaded.model

    def sessions():
        return [
            Session(text[i : i + 180 + i], strategy=Strategy.of(name), sampling=sampling, max_tokens=120)
            for i, sampling in enumerate(SAMPLINGS)
        ]

    free = model.pools.free_pages, model.pools.free_slots
    want, got = sessions(), sessions()
    for session in want:
        list(Engine(model).stream(session))
    engine = run_in(model, 3, got)
    assert (got[0].n_preempted, engine.n_preempted > 0, got[2].n_preempted > 0) == (0, True, True)
    for one, other in zip(got, want, strict=True):
        assert one.output_ids == other.output_ids
        assert [each.token for each in one.logprobs] == [each.token for each in other.logprobs]
        assert one.finish_reason == "length"
    assert (model.pools.free_pages, model.pools.free_slots) == free


def test_at_any_step(loaded, text):
    """Also with a step in flight: it is dropped, and made again later."""
    model = loaded.model

    def sessions():
        return [
            Session(text[9 * i : 9 * i + 100], strategy=Strategy.of(name), sampling=SAMPLINGS[i], max_tokens=60)
            for i, name in enumerate(["plain", "mtp:2", "dflash"])
        ]

    def preempt(engine):
        steps.append(engine.active)
        if len(steps) % 4 == 0 and engine.active:
            engine._preempt(engine._active[len(steps) // 4 % engine.active])

    steps, want, got = [], sessions(), sessions()
    for session in want:
        list(Engine(model).stream(session))
    engine = run_in(model, model.pools.free_pages, got, between=preempt)
    assert [one.output_ids for one in got] == [other.output_ids for other in want]
    assert engine.n_preempted > 5
