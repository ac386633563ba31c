"""Sampling of a token, and overhead of the engine. ``pytest benchmarks/test_sample.py`` prints µs."""

from types import SimpleNamespace

import numpy as np
import pytest
from oracles import drawn, ruled

from dflash.decode.engine import Engine
from dflash.decode.sampling.history import History
from dflash.decode.sampling.params import Sampling
from dflash.decode.sampling.sampler import Sampler
from dflash.decode.session import Session
from dflash.model.batch import Forward

WAYS = [
    Sampling(),
    Sampling(logprobs=5),
    Sampling(repetition_penalty=1.1),
    Sampling(temperature=0.7),
    Sampling(temperature=0.7, top_p=0.9),
    Sampling(temperature=0.7, top_k=20, top_p=0.9),
    Sampling(temperature=0.7, min_p=0.05),
]
STEPS = 300


def logits_of(n_vocab):
    """Return logits distributed as a language model's: most far below the largest."""
    draws = np.random.default_rng(1).standard_normal(n_vocab)
    return (2.5 * draws + 8 * (draws > 3)).astype(np.float32)


class Free:
    """A model whose forward costs nothing."""

    def __init__(self, n_vocab):
        self.n_vocab, self.rows, self.row = n_vocab, 64, logits_of(n_vocab)[None]
        self.config, self.pools = SimpleNamespace(context=1000), SimpleNamespace(pages=100, slots=1)

    def state(self):
        return SimpleNamespace(reserve=ignore, commit=ignore, close=ignore)

    def forward(self, spans, **_):
        return Forward(self.row, self.row, {}, tuple(spans))


def ignore(*_):
    pass


@pytest.mark.parametrize("n_vocab", [16_384, 248_320])
@pytest.mark.parametrize("sampling", WAYS, ids=repr)
def test_step(benchmark, capsys, sampling, n_vocab):
    if n_vocab < 20_000:
        row, history = logits_of(n_vocab), History([1])
        sampler = Sampler(sampling, 3)
        if sampling.penalties:
            history.count()
        assert sampler.sample(row, history) == drawn(ruled(row, [1], 1, sampling), sampling, 3, 1)

    def write():
        for _ in Engine(Free(n_vocab)).stream(Session([1], sampling=sampling, max_tokens=STEPS)):
            pass

    benchmark.pedantic(write, rounds=5, warmup_rounds=1)
    with capsys.disabled():
        print(
            f"\na step without its forward, {sampling}, {n_vocab} tokens: {benchmark.stats.stats.min / STEPS * 1e6:.1f} µs"
        )
