"""Whoever leaves a text while drafters are at work leaves nothing behind."""

from dataclasses import replace

import drafts
import numpy as np
import pytest
from golden import load, path_of

from dflash.decode.drafters.adaptive.drafter import Adaptive
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.draft_model import DraftModel
from dflash.decode.drafters.first_of import FirstOf
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session

NAME = "qwen35-r2-mtp-F16"


@pytest.fixture
def model():
    model = load(NAME, kv="f16")
    yield model
    model.attachments.close()


@pytest.fixture
def draft(model, tmp_path, monkeypatch):
    """Of random weights."""
    n_vocab = model.config.n_vocab
    sizes = {"width": model.config.width, "n_vocab": n_vocab, "mask": 5, "target_layer_ids": (0, model.config.n_layers - 1)}
    made = replace(drafts.SMALL, **sizes)
    monkeypatch.setattr(drafts, "VOCAB", n_vocab)
    return str(drafts.write_gguf(tmp_path / "draft.gguf", made, drafts.random_weights(made, n_head=n_vocab)))


def held(model):
    """Pages, slots and snapshots' slots that are in use, of the model and of all that goes with it."""
    pools = [model.pools, *(each.pools for each in model.attachments.values() if hasattr(each, "pools"))]
    slots = sum(model.pools.slots - each.free_slots for each in model.attachments.values() if hasattr(each, "reach"))
    return [(pool.pages - pool.free_pages, pool.slots - pool.free_slots) for pool in pools], slots


def test_a_thousand_generations_with_cancellations(model, draft):
    rng = np.random.default_rng(8)
    small = DraftModel(str(path_of(NAME)))
    strategies = [
        Strategy(),
        Strategy(MTP(), Chain(2)),
        Strategy(MTP(), Tree(5)),
        Strategy(DFlash(draft)),
        Strategy(DFlash(draft), Tree(9)),
        Strategy(small, Chain(2)),
        Strategy(FirstOf(PromptLookup(min_ngram=1), MTP())),
        Strategy(Adaptive(MTP(), DFlash(draft), PromptLookup(min_ngram=1))),
    ]
    for strategy in strategies:
        strategy.drafter.prepare(model)
    nothing = held(model)
    assert nothing == ([(0, 0)] * len(nothing[0]), 0)
    assert len(nothing[0]) >= 2
    engine, sessions, most = Engine(model, chunk=9), [], 0
    while len(sessions) < 1000 or engine.busy:
        while len(sessions) < 1000 and engine.waiting < 3:
            prompt = rng.integers(0, model.n_vocab, rng.integers(1, 24)).tolist()
            strategy = strategies[rng.integers(len(strategies))]
            sampling = Sampling(temperature=float(rng.integers(2)), seed=int(rng.integers(99)))
            session = Session(prompt, sampling=sampling, strategy=strategy, max_tokens=int(rng.integers(0, 9)))
            sessions.append(engine.add(session))
        if rng.random() < 0.5:
            sessions[-int(rng.integers(1, 16)) % len(sessions)].cancel()
        engine.step()
        most = max(most, held(model)[1])
    for session in sessions:
        assert session.error is None
    reasons = [session.finish_reason for session in sessions]
    assert set(reasons) == {"length", "cancelled"}
    assert 100 < reasons.count("cancelled") < 900
    assert most > 1
    assert held(model) == nothing
