"""Gumbel-max draws from the law that the rules leave, exactly."""

import numpy as np
import pytest
from marginals import law_of
from toy import Toy

from dflash.decode.engine import Engine
from dflash.decode.sampling.history import History
from dflash.decode.sampling.params import Sampling
from dflash.decode.sampling.sampler import Sampler
from dflash.decode.session import Session


def assert_follows(counts, law):
    """Chi-square, refused at 1e-4; cells that expect less than 5 are put together."""
    expected = counts.sum() * law
    assert counts[law == 0].sum() == 0
    small = expected < 5
    counts = np.append(counts[~small], counts[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    k = len(expected) - 1
    statistic = ((counts - expected) ** 2 / expected).sum()
    # the quantile by Wilson and Hilferty
    assert statistic < k * (1 - 2 / (9 * k) + 3.72 * np.sqrt(2 / (9 * k))) ** 3


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.5),
        Sampling(temperature=1.0, top_k=5),
        Sampling(temperature=1.2, top_p=0.8),
        Sampling(temperature=1.0, min_p=0.2),
        Sampling(temperature=1.5, top_k=40, top_p=0.95, min_p=0.02),
    ],
    ids=repr,
)
def test_a_sampled_token_follows_the_distribution(sampling):
    n_vocab = 90
    logits = (1.5 * np.random.default_rng(2).standard_normal(n_vocab)).astype(np.float32)
    history, counts = History([1, 2, 3]), np.zeros(n_vocab)
    for seed in range(20_000):
        counts[Sampler(sampling, seed).sample(logits, history)] += 1
    assert_follows(counts, law_of(logits, sampling))


def test_one_seed_along_a_text():
    logits = np.random.default_rng(2).standard_normal(40).astype(np.float32)
    sampler, history, counts = Sampler(Sampling(temperature=1.0), 5), History([1]), np.zeros((40, 40))
    last = sampler.sample(logits, history)
    for _ in range(20_000):
        history.token_ids.append(0)
        token = sampler.sample(logits, history)
        counts[last, token] += 1
        last = token
    law = law_of(logits, Sampling(temperature=1.0))
    assert_follows(counts.ravel(), np.outer(law, law).ravel())


def test_pairs_of_sampled_tokens_follow_the_distribution():
    toy, sampling, n = Toy(4, sharp=1.5), {"temperature": 0.9, "top_p": 0.97}, 4000
    sessions = [Session([1, 2], sampling=Sampling(**sampling, seed=seed), max_tokens=2) for seed in range(n)]
    list(Engine(toy).run(sessions))
    counts, law = np.zeros((4, 4)), np.zeros((4, 4))
    for session in sessions:
        counts[tuple(session.output_ids)] += 1
    first = law_of(toy.after([1, 2]), Sampling(**sampling))
    for token in range(4):
        law[token] = first[token] * law_of(toy.after([1, 2, token]), Sampling(**sampling))
    assert_follows(counts.ravel(), law.ravel())
