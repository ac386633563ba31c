"""Conversations on a GPU with the prefix cache: the tokens and log-probabilities of a cold start, bit for bit."""

import pytest

from dflash.decode.drafters import Strategy
from dflash.decode.engine import Engine
from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model

TEXTS = ("def add(a, b):\n    return a + b\n\n\n" * 30, "The capital of France is Paris. " * 40, "1, 2, 3, 4, 5, " * 60)


@pytest.fixture(scope="module", params=["f16", "f32", "q8_0", "q4_0"])
def loaded(request):
    return load_model("demo", LoadSettings(device="cuda", context=4096, sequences=3, kv=request.param))


def turn(engine, prompts, name, seed):
    """Run one session for each prompt, all in one batch, with a boundary every 90 tokens."""
    sessions = [
        Session(
            prompt,
            strategy=Strategy.of(name),
            max_tokens=24 + 13 * i,
            sampling=Sampling(temperature=0.7 * (i % 2), seed=seed, logprobs=3),
            boundaries=tuple(range(90, len(prompt), 90)),
        )
        for i, prompt in enumerate(prompts)
    ]
    list(engine.run(sessions))
    assert [session.error for session in sessions] == [None] * len(sessions)
    return sessions


@pytest.mark.parametrize("reread", [False, True])
@pytest.mark.parametrize("name", ["plain", "dflash", "ddtree:12", "mtp:2"])
def test_conversations_continue_with_the_bits_of_a_cold_start(loaded, name, reread, monkeypatch):
    monkeypatch.setattr("dflash.decode.scheduling.reread.DELAY", 0.0)
    model, free = loaded.model, loaded.model.pools.free_pages
    warm = Engine(model, prefix_cache=PrefixCache(1 << 30, model.pools.page_bytes, reread=reread))
    cold, ends = Engine(model), []
    prompts = [loaded.tokenizer.encode(text)[: 500 + 70 * i] for i, text in enumerate(TEXTS)]
    for number in range(4):
        got, want = (turn(engine, prompts, name, number) for engine in (warm, cold))
        for mine, other in zip(got, want, strict=True):
            assert mine.output_ids == other.output_ids
            assert mine.logprobs == other.logprobs
            assert mine.n_cached % model.chunk_alignment == 0
            assert (mine.n_cached > 0) == (number > 0)
        if reread and number:
            assert [session.n_cached for session in got] == ends
        while warm.busy:
            warm.step()
        ends = [(len(session.token_ids) - 1) // model.chunk_alignment * model.chunk_alignment for session in got]
        prompts = [session.token_ids + loaded.tokenizer.encode("Go on with the next one, please. ") for session in got]
    assert min(session.n_cached for session in got) > 300
    warm.prefix_cache.clear()
    assert model.pools.free_pages == free
