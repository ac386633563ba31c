"""Drafts under sampling: what comes out follows the target's law, and drafts that share its noise are right often."""

import numpy as np
import pytest
from marginals import Marginals, bigram_target, law_of, laws, z_of

from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.decode.verify import verify
from dflash.kernels import sample

V, N = 9, 20_000
TARGET, DRAFT = laws(V, 1, 1.3), laws(V, 1, 1.3) + laws(V, 2, 0.7)
CUTS = [
    Sampling(temperature=1.0, top_k=4),
    Sampling(temperature=1.2, top_k=7, top_p=0.9, min_p=0.05),
    Sampling(temperature=0.8, top_p=0.85),
]
CASES = [(Chain(3), CUTS[1]), (Tree(7, depth=3), CUTS[2])]


def two_tokens(drafter, shape, sampling, seed):
    """The first two tokens after token 3 by the verifier, and how many of them were drafted."""
    options = Sampling(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, seed=seed)
    session = Session([3], sampling=options, strategy=Strategy(drafter, shape), max_tokens=8)
    session.max_length, drafter_state, accepted = 9, drafter.start(session, None), 0
    while session.n_tokens < 2:
        draft = drafter_state.propose(6)
        kept = verify(draft, TARGET[[session.token_ids[-1], *draft.tokens]], session)
        session.append(kept)
        accepted += kept.n_accepted
    return session.output_ids[:2], accepted


@pytest.mark.parametrize(("shape", "sampling"), CASES, ids=repr)
def test_tokens_and_pairs_follow_the_law(shape, sampling):
    """Exactly the target's, whatever draft stands before it: one that errs, and has no say on what it leaves out."""
    pairs, accepted, drafter = np.zeros((V, V)), 0, Marginals(DRAFT)
    for seed in range(N):
        tokens, n = two_tokens(drafter, shape, sampling, seed)
        pairs[tuple(tokens)] += 1
        accepted += n
    first = law_of(TARGET[3], sampling)
    both = first[:, None] * np.stack([law_of(row, sampling) for row in TARGET])
    assert z_of(pairs.sum(axis=1), first) < 3.5
    assert z_of(pairs.ravel(), both.ravel()) < 3.5
    assert accepted > N / 2


def agreement(p, q):
    """How often ``argmax(log p + G)`` is ``argmax(log q + G)``.

    With E = exp(-G), exponential, token i wins both if ``E_j >= E_i max(p_j / p_i, q_j / q_i)`` for all j, and the
    probability of that is the integral of ``exp(-x sum_j max(...))``.
    """
    there = [i for i in range(len(p)) if p[i] > 0 and q[i] > 0]
    return sum(1 / np.maximum(p / p[i], q / q[i]).sum() for i in there)


@pytest.mark.parametrize("sampling", CUTS, ids=repr)
def test_acceptance_rate_of_the_first_draft_token(sampling):
    for row in range(2):
        p, q = (law_of(table[row], sampling) for table in (TARGET, DRAFT))
        law = Session([0], sampling=sampling).sampler.params
        laws_ = [law._replace(seed=seed) for seed in range(N)]
        ids, scores = np.empty((N, 1), np.int32), np.empty((N, 1), np.float32)
        sample.candidates(np.repeat(DRAFT[row : row + 1], N, axis=0), laws_, [5] * N, 1, ids=ids, scores=scores)
        drawn = np.array([sample.sample_one(TARGET[row], law, 5) for law in laws_])
        found, expected = (ids[:, 0] == drawn).mean(), agreement(p, q)
        assert abs(found / expected - 1) < 0.05
        assert abs(found - expected) < 4 * np.sqrt(expected * (1 - expected) / N)
        distance = 0.5 * np.abs(p - q).sum()
        assert expected >= (1 - distance) / (1 + distance) - 1e-9


def test_the_shared_noise_is_worth_it():
    """A draft that takes what it finds likeliest is right far less often where the target draws."""
    flat = np.repeat(laws(40, 5, 1.0)[:1], 40, axis=0)
    near = flat + 0.2 * laws(40, 6, 1.0)[:1]
    toy, found = bigram_target(flat), {}
    for coupled in (True, False):
        drafter = Marginals(near, coupled=coupled)
        sessions = [
            Session([1], sampling=Sampling(temperature=1.0, seed=seed), strategy=Strategy(drafter), max_tokens=60)
            for seed in range(12)
        ]
        list(Engine(toy).run(sessions))
        steps = [step for session in sessions for step in session.steps if step.tokens]
        found[coupled] = sum(len(step.tokens) for step in steps) / len(steps)
    assert found[True] > 3.5
    assert found[False] < 1.5
