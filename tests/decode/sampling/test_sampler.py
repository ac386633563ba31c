"""The folded rules pick what the rules pick one by one."""

from collections import Counter

import numpy as np
import pytest
from oracles import drawn, ruled
from toy import Toy

from dflash.decode.sampling.history import History
from dflash.decode.sampling.params import Sampling
from dflash.decode.sampling.sampler import Sampler
from dflash.errors import DFlashError

RNG = np.random.default_rng(8)
LAWS = [
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=0.6, min_p=0.1),
    Sampling(temperature=1.3, top_k=7),
    Sampling(temperature=1.3, top_k=10_000),
    Sampling(temperature=0.9, top_p=0.8),
    Sampling(temperature=5.0, top_p=0.99),
    Sampling(temperature=1.0, top_p=0.0),
    Sampling(temperature=0.7, top_k=20, top_p=0.9, min_p=0.05),
    Sampling(temperature=0.7, top_p=0.9, min_p=0.05),
    Sampling(temperature=0.01),
    Sampling(temperature=100.0, top_k=3, min_p=1.0),
]
RULES = [
    {},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.5, "frequency_penalty": -0.7},
    {"repetition_penalty": 0.8, "frequency_penalty": 0.3, "logit_bias": {3: 4.0, 0: -100}},
]


@pytest.mark.parametrize("n_vocab", [3, 64, 700])
@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_the_fold_is_the_rules(law, n_vocab):
    for trial in range(30):
        rules = RULES[trial % len(RULES)] if n_vocab > 3 else {}
        sampling = Sampling(**{**{name: getattr(law, name) for name in ("temperature", "top_k", "top_p", "min_p")}, **rules})
        row = (3 * RNG.standard_normal(n_vocab)).astype(np.float32)
        if trial % 3 == 0:
            row = np.round(row)
        if trial % 5 == 0 and n_vocab > 3:
            row[RNG.integers(0, n_vocab, n_vocab // 2)] = -np.inf
        text = RNG.integers(0, n_vocab, 20).tolist()
        history = History(text[:12])
        sampler = Sampler(sampling, 2**63 + trial)
        if sampling.penalties:
            history.count()
        for token in text[12:]:
            history.push(token)
        before = row.copy()
        got = sampler.sample(row, history)
        assert got == drawn(ruled(row, text, 12, sampling), sampling, 2**63 + trial, 20)
        assert (row == before).all()


def test_counts_follow_the_text():
    history = History([4, 5, 4])
    history.count()
    checked = []
    for _ in range(400):
        if RNG.random() < 0.9:
            history.push(int(RNG.integers(9)))
        else:
            history.cut(int(RNG.integers(3, len(history) + 1)))
        counts = history.counts
        produced = Counter(history.token_ids[3:])
        got = dict(zip(counts.ids.tolist(), counts.produced.tolist(), strict=True))
        assert got == {token: produced[token] for token in {4, 5, *produced}}
        checked.append(len(history))
    assert max(checked) > 15


def test_log_probabilities_are_the_models_own():
    row = RNG.standard_normal(50).astype(np.float32)
    exact = row - np.log(np.exp(row.astype(np.float64)).sum())
    sampler = Sampler(Sampling(temperature=2.0, top_k=3, logit_bias={7: 9.0}, logprobs=4), 0)
    found = sampler.logprobs(row, 7)
    assert found.token == 7
    assert found.logprob == pytest.approx(exact[7], abs=1e-5)
    best = np.argsort(-row)[:4]
    assert [token for token, _ in found.top] == best.tolist()
    assert [value for _, value in found.top] == pytest.approx(exact[best], abs=1e-5)
    assert Sampler(Sampling(logprobs=0), 0).logprobs(row, 7).top == ()
    assert len(Sampler(Sampling(logprobs=99), 0).logprobs(row, 7).top) == 50
    assert Sampler(Sampling(), 0).logprobs(row, 7) is None


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_nothing_to_pick(law, value):
    assert Sampler(law, 0).sample(np.full(70, value, np.float32), History([1])) == -1


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_masks_of_the_lowest_float(law):
    row = np.full(70, np.finfo(np.float32).min)
    row[5] = 3
    assert Sampler(law, 0).sample(row, History([1])) == 5


def test_a_processor_must_return_a_row():
    sampler = Sampler(Sampling(), 0, [lambda logits, history: logits[:3]])
    with pytest.raises(DFlashError, match=r"must return float32 \(13,\), got \(3,\)"):
        sampler.sample(Toy().after([1]), History([1]))
