"""The prefix cache with the demo model: real pages, recurrent states and drafters."""

import numpy as np
import pytest
from golden import load

from dflash.decode.drafters import Strategy
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafting.drafter import Plain
from dflash.decode.engine import Engine
from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.prefix_cache.disk import DiskTier
from dflash.decode.prefix_cache.disk.identity import identity_of
from dflash.decode.prompt_ids import PromptIds
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.generation.completion import role_boundaries
from dflash.kernels.ragged import PAGE
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model

STRATEGIES = ["plain", "dflash", "mtp:2", "ddtree:8", "lookup", "first(lookup,mtp:2)"]
SAMPLINGS = [Sampling(), Sampling(temperature=0.8, top_p=0.9, seed=5)]


@pytest.fixture(scope="module")
def loaded():
    """Demo with the default type of keys and values; files of states are tried with each."""
    return load_model("demo", LoadSettings(device="cpu", threads=1, context=1024, sequences=3))


@pytest.fixture(scope="module")
def text(loaded):
    return loaded.tokenizer.encode("def add(a, b):\n    return a + b\n\n\ndef multiply(a, b):\n    return a * b\n\n" * 8)


def outputs(engine, sessions):
    list(engine.run(sessions))
    assert all(session.error is None for session in sessions)
    return [session.output_ids for session in sessions]


def test_warm_is_cold(loaded, text):
    """A tree of prompts, each drafter in turn, with a cache so small that it evicts and one that holds everything."""
    model, rng = loaded.model, np.random.default_rng(1)
    free = model.pools.free_pages
    jobs = []
    for i in range(12):
        start = 0 if i % 3 else 40
        n = int(rng.integers(60, 130))
        jobs.append((text[start : start + n], STRATEGIES[i % len(STRATEGIES)], SAMPLINGS[i % 2], int(rng.integers(1, 20))))

    def sessions(**settings):
        return [
            Session(prompt, strategy=Strategy.of(name), sampling=sampling, max_tokens=n, **settings)
            for prompt, name, sampling, n in jobs
        ]

    cold = Engine(model)
    want = [outputs(cold, [session])[0] for session in sessions()]
    for capacity in (24 << 20, 1 << 30):
        cache = PrefixCache(capacity, model.pools.page_bytes)
        engine = Engine(model, prefix_cache=cache)
        warm = sessions(boundaries=(30, 64, 100))
        got = [tokens for i in range(0, len(warm), 3) for tokens in outputs(engine, warm[i : i + 3])]
        assert got == want
        again = sessions(boundaries=(30, 64, 100))
        assert [outputs(engine, [session])[0] for session in again] == want
        assert cache.stats.n_bytes <= capacity
        assert cache.stats.hits > (len(jobs) if capacity > 1 << 25 else 0)
        assert cache.stats.evictions > 0 or capacity > 1 << 25
        cache.clear()
        assert (model.pools.free_pages, cache.stats.n_bytes) == (free, 0)


def test_drafters_continue_with_their_state(loaded, text):
    """A drafter that begins with its snapshot drafts what it drafts after a cold start: the same steps."""
    engine = Engine(loaded.model, prefix_cache=PrefixCache(1 << 30, loaded.model.pools.page_bytes))
    for name in ("dflash", "mtp:2", "ddtree:8"):
        cold = Session(text[:150], strategy=Strategy.of(name), max_tokens=24)
        warm = Session(text[:150], strategy=Strategy.of(name), max_tokens=24)
        engine.prefix_cache.clear()
        assert outputs(engine, [cold]) == outputs(engine, [warm])
        assert (cold.n_cached, warm.n_cached) == (0, 149)
        assert [step.accepted for step in warm.steps if step.tokens] == [s.accepted for s in cold.steps if s.tokens]
        assert warm.n_accepted > 0
    engine.prefix_cache.clear()


def test_the_cache_gives_way_when_pages_are_short(loaded, text):
    """Prompts that fill the pages of the model start although the cache holds most of them."""
    pools, pages = loaded.model.pools, 3
    others = pools.take_pages(pools.free_pages - pages)
    engine = Engine(loaded.model, prefix_cache=PrefixCache(1 << 30, pools.page_bytes))
    for i in range(4):
        prompt = text[i : i + 300]
        for n in (300, 299):
            (tokens,) = outputs(engine, [Session(prompt[:n], max_tokens=2 + 256 * (i == 3))])
            assert len(tokens) == 2 or i == 3
    assert engine.prefix_cache.stats.evictions > 0
    assert engine.prefix_cache.stats.hits > 0
    engine.prefix_cache.clear()
    assert pools.free_pages == pages
    pools.return_pages(others)


def test_boundaries_of_a_conversation(loaded):
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is 2 + 2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "And 3 + 3?"},
    ]
    tokenizer = loaded.tokenizer
    ids = tokenizer.encode(loaded.template.render(messages))
    found = role_boundaries(tokenizer, PromptIds(ids))
    ends = [tokenizer.decode(ids[n : n + 2]) for n in found]
    assert ends == ["<|im_start|>user", "<|im_start|>user", "<|im_start|>assistant"]
    assert role_boundaries(tokenizer, PromptIds(tokenizer.encode("plain text"))) == ()


@pytest.fixture(scope="module")
def short_reach():
    """The demo with a draft model that attends to 64 positions, so that prompts are longer than that."""
    return load_model("demo", LoadSettings(device="cpu", threads=1, context=1024, sequences=3)), DFlash(context=64)


def accepted(engine, prompt, drafter, shape=None, **settings):
    session = Session(prompt, strategy=Strategy(drafter, shape), max_tokens=16, **settings)
    outputs(engine, [session])
    return [(step.drafted, step.accepted) for step in session.steps if step.tokens], session


DRAFTERS = [
    "dflash",
    "mtp:2",
    "mtp-tree:4",
    "ddtree:8",
    "lookup",
    "draft-model:2",
    "first(lookup,mtp:2)",
    "first(dflash,mtp)",
]


@pytest.mark.parametrize("name", DRAFTERS)
def test_acceptance_does_not_depend_on_who_filled_the_cache(loaded, text, name):
    strategy = Strategy.named(name, "demo") if name.startswith("draft-model") else Strategy.of(name)
    engine = Engine(loaded.model, prefix_cache=PrefixCache(1 << 30, loaded.model.pools.page_bytes))
    want, _ = accepted(Engine(loaded.model), text[:150], strategy.drafter, strategy.shape)
    others = ["plain", "mtp:3", "dflash", "lookup"]
    for before in (*([other] for other in others[:3]), others, ["plain", name, "dflash", "mtp:2"]):
        engine.prefix_cache.clear()
        for other in before:
            filler = strategy if other == name else Strategy.of(other)
            accepted(engine, text[:150], filler.drafter, filler.shape, boundaries=(30, 64, 100))
        for boundaries in ((), (30, 64, 100)):  # the second request begins with what the first one saved
            got, session = accepted(engine, text[:150], strategy.drafter, strategy.shape, boundaries=boundaries)
            assert got == want, (before, session.n_cached)
        assert session.n_cached == 149
    engine.prefix_cache.clear()


def test_a_draft_model_of_short_reach_needs_no_state_before_it(short_reach, text):
    loaded, drafter = short_reach
    engine = Engine(loaded.model, prefix_cache=PrefixCache(1 << 30, loaded.model.pools.page_bytes))
    drafter.prepare(loaded.model)
    reach = loaded.model.attachments[drafter].reach
    boundaries = (32, 64, 80)
    accepted(engine, text[:200], Plain().drafter, boundaries=boundaries)
    for n in (200, 150, 120, 90):  # shorter prompts come last: states near their ends lack what they need
        want, _ = accepted(Engine(loaded.model), text[:n], drafter)
        got, session = accepted(engine, text[:n], drafter, boundaries=boundaries)
        assert got == want
        without = [at for at in boundaries if at <= n - 1 - reach]
        assert session.n_cached >= max(without, default=0)
        again, session = accepted(engine, text[:n], drafter, boundaries=boundaries)
        assert again == want
        assert session.n_cached >= min(n, len(text)) - 1 - engine.prefix_cache.min_gain
    engine.prefix_cache.clear()


def test_states_of_several_drafters_share_one_snapshot(loaded, text):
    engine = Engine(loaded.model, prefix_cache=PrefixCache(1 << 30, loaded.model.pools.page_bytes))
    names = ["dflash", "mtp:2", "plain", "first(lookup,mtp:2)"]
    found = [[accepted(engine, text[:150], *parts(name))[1].n_cached for name in names] for _ in range(2)]
    assert found == [[0, 0, 149, 0], [149] * 4]
    stats = engine.prefix_cache.stats
    assert (stats.drafter_misses, stats.drafter_miss_tokens) == (2, 2 * 149)
    engine.prefix_cache.clear()


def parts(name):
    strategy = Strategy.of(name)
    return strategy.drafter, strategy.shape


def test_salts_share_no_states(loaded, text, tmp_path):
    """Neither in memory nor on disk, and the cache is empty at the end."""
    disk = DiskTier(tmp_path, 1 << 30, identity_of(loaded), min_gain=32)
    cache = PrefixCache(1 << 30, loaded.model.pools.page_bytes, disk=disk)
    engine, free = Engine(loaded.model, prefix_cache=cache), loaded.model.pools.free_pages
    want = accepted(Engine(loaded.model), text[:150], Plain().drafter)[1].output_ids
    for round_ in range(2):
        for salt in ("", "alice", "bob"):
            for n_cached in (149 if round_ else 0, 149):
                session = accepted(engine, text[:150], Plain().drafter, cache_salt=salt)[1]
                assert (session.n_cached, session.output_ids) == (n_cached, want)
        disk.flush()
        cache.close()
        assert (len(cache), cache.stats.n_bytes, loaded.model.pools.free_pages) == (0, 0, free)
    assert len(list(tmp_path.glob("*.safetensors"))) == 6  # of each salt the end of the prompt and that of the session


@pytest.mark.parametrize("name", ["qwen2-tiny-Q8_0", "gemma4-tiny-Q8_0"])
def test_a_state_is_cut_back_where_nothing_is_recurrent(name):
    """Prompts that leave the first one anywhere, inside a page and beyond one, give the tokens of a cold start."""
    model, rng = load(name), np.random.default_rng(1)
    cache = PrefixCache(1 << 30, model.pools.page_bytes)
    engine, cold = Engine(model, prefix_cache=cache), Engine(model)
    base = rng.integers(0, model.n_vocab, 300).tolist()
    outputs(engine, [Session(base, max_tokens=2)])
    for n in (40, PAGE + 9, 20):
        prompt = [*base[:n], (base[n] + 1) % model.n_vocab, *base[n + 1 : n + 20]]
        want = outputs(cold, [Session(prompt, max_tokens=6)])
        session = Session(prompt, max_tokens=6)
        assert outputs(engine, [session]) == want
        assert session.n_cached == n
    engine.close()
