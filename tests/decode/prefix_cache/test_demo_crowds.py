"""Random conversations of the demo model with everything at once: evictions, disk, cancels, preemptions, all drafters.

``DFLASH_SESSIONS=N`` runs more than the default.
"""

import os
from functools import cache

import numpy as np
import pytest

from dflash.decode.drafters import Strategy
from dflash.decode.engine import Engine
from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.prefix_cache.disk import DiskTier
from dflash.decode.prefix_cache.disk.identity import identity_of
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model

N_SESSIONS = int(os.environ.get("DFLASH_SESSIONS", "16"))
STRATEGIES = ["plain", "dflash", "mtp:2", "ddtree:8", "lookup", "first(lookup,mtp:2)"]
SAMPLINGS = [Sampling(), Sampling(temperature=0.9, top_p=0.9, seed=7), Sampling(repetition_penalty=1.3, logprobs=2)]


@pytest.fixture(scope="module", params=["f16", "f32", "q8_0"])
def loaded(request):
    return load_model("demo", LoadSettings(device="cpu", threads=1, context=1024, sequences=6, kv=request.param))


def test_warm_is_cold(loaded, tmp_path):
    model, rng = loaded.model, np.random.default_rng(N_SESSIONS)
    free, text = (
        model.pools.free_pages,
        loaded.tokenizer.encode("def add(a, b):\n    return a + b\n\n\n# The end, or not?\n" * 20),
    )

    @cache
    def cold(prompt, sampling, n):
        model.pools.return_pages(held)
        session = Session(list(prompt), sampling=SAMPLINGS[sampling], max_tokens=n)
        list(Engine(model).stream(session))
        held[:] = model.pools.take_pages(len(held))
        return session

    def prompt_of():
        """Return a new prompt, or an earlier one with its output, or a part of it, and what follows."""
        if not known or rng.random() < 0.3:
            start = int(rng.integers(3)) * 10
            return text[start : start + int(rng.integers(70, 200))]
        earlier = known[rng.integers(len(known))]
        n = len(earlier) if rng.random() < 0.6 else int(rng.integers(60, len(earlier)))
        return earlier[:n][:330] + text[: int(rng.integers(1, 60))]

    known, jobs, n_started, n_checked, n_cached = [], {}, 0, 0, 0
    disk = DiskTier(tmp_path, 1 << 28, identity_of(loaded), min_gain=32)
    held = model.pools.take_pages(free - 7)
    engine = Engine(model, headroom=0, prefix_cache=PrefixCache(24 << 20, model.pools.page_bytes, disk=disk))
    try:
        while n_started < N_SESSIONS or engine.busy:
            if n_started < N_SESSIONS and len(jobs) < 4 and rng.random() < 0.5:
                prompt, sampling, n = prompt_of(), int(rng.integers(3)), int(rng.integers(1, 40))
                strategy = Strategy.of(STRATEGIES[n_started % len(STRATEGIES)])
                boundaries = tuple(sorted(int(at) for at in rng.integers(1, len(prompt), 3)))
                settings = {"sampling": SAMPLINGS[sampling], "max_tokens": n, "boundaries": boundaries}
                session = engine.add(Session(prompt, strategy=strategy, **settings))
                jobs[session], n_started = (tuple(prompt), sampling, n), n_started + 1
            for session in [*engine._active]:
                chance = rng.random()
                if chance < 0.02:
                    session.cancel()
                elif chance < 0.06:
                    engine._preempt(session)
            engine.step()
            for session in [session for session in jobs if session.finished]:
                job = jobs.pop(session)
                assert session.error is None
                want = cold(*job)
                assert session.output_ids == want.output_ids[: len(session.output_ids)]
                assert session.logprobs == want.logprobs[: len(session.logprobs)]
                known.append([*session.token_ids])
                if session.finish_reason != "cancelled":
                    assert session.output_ids == want.output_ids
                    n_checked, n_cached = n_checked + 1, n_cached + (session.n_cached > 0)
        assert n_checked > N_SESSIONS // 2
        assert n_cached > N_SESSIONS // 8
        assert engine.n_preempted > 0
        assert engine.prefix_cache.stats.evictions > 0
        engine.prefix_cache.close()
        assert disk.stats.writes > 0
    finally:
        model.pools.return_pages(held)
    assert model.pools.free_pages == free
