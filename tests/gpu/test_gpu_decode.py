"""Sessions on a GPU: what is drawn there is what the CPU would draw from the same logits."""

from types import SimpleNamespace

import numpy as np
import pytest
from golden import load
from oracles import Oracle

from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.model.batch import Forward

NAME = "qwen35-r2-untied-Q4_0"
SAMPLINGS = [
    Sampling(),
    Sampling(logprobs=3),
    Sampling(temperature=1.0, seed=1),
    Sampling(temperature=0.7, top_k=20, top_p=0.95, seed=2, logprobs=0),
    Sampling(temperature=1.0, top_p=0.8, min_p=0.02, seed=3),
    Sampling(temperature=1.0, presence_penalty=1.5, repetition_penalty=1.1, seed=4, logprobs=2),
    Sampling(frequency_penalty=0.7, logit_bias={3: 2.0, 11: -100}),
]


class OnTheHost:
    """The same model, but its logits are NumPy's."""

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        return getattr(self._model, name)

    def forward(self, spans, *, capture=()):
        out = self._model.forward(spans, capture=capture)
        return Forward(np.asarray(out.logits), out.hidden, out.captured, out.spans)


def written(model, strategy, processors=()):
    engine = Engine(model)
    sessions = [
        Session(range(5 + i, 40 + 3 * i), sampling=sampling, strategy=strategy, max_tokens=24, processors=processors)
        for i, sampling in enumerate(SAMPLINGS)
    ]
    list(engine.run(sessions))
    assert [session.error for session in sessions] == [None] * len(sessions)
    return [SimpleNamespace(tokens=session.output_ids, logprobs=session.logprobs) for session in sessions]


def same(texts, others):
    for got, want in zip(texts, others, strict=True):
        assert got.tokens == want.tokens
        assert [entry.token for entry in got.logprobs] == [entry.token for entry in want.logprobs]
        for ours, theirs in zip(got.logprobs, want.logprobs, strict=True):
            assert ours.logprob == pytest.approx(theirs.logprob, abs=5e-5)
            assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]


@pytest.fixture(scope="module")
def model():
    return load(NAME, device="cuda")


@pytest.fixture(scope="module")
def plain(model):
    return written(model, Plain())


def test_draws_are_those_of_the_host(model, plain):
    same(plain, written(OnTheHost(model), Plain()))


def test_a_rule_that_sees_every_node(model, plain):
    same(plain, written(model, Plain(), [lambda logits, history: logits]))


@pytest.mark.parametrize("kind", ["right", "chain", "wrong"])
def test_outputs_with_draft_chains_are_plain(model, plain, kind):
    texts = tuple((*range(5 + i, 40 + 3 * i), *text.tokens) for i, text in enumerate(plain))
    same(plain, written(model, Strategy(OracleDrafts(texts, kind, n_vocab=model.n_vocab))))


class OracleDrafts(Oracle):
    """An oracle that wants to see nothing of the model."""

    def start(self, session, model, snapshot=None):
        drafting = super().start(session, model, snapshot)
        drafting.capture, drafting.observe = (), lambda step, out, rows: None
        return drafting
