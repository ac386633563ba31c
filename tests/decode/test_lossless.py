"""No guess changes a text: every drafter in every shape, however tokens are picked, alone and in company."""

import json
import os
from dataclasses import replace
from functools import cache

import drafts
import numpy as np
import pytest
from demo_text import DATA
from golden import load, path_of, recorded

from dflash.decode.drafters.adaptive import Adaptive
from dflash.decode.drafters.ddtree import DDTree
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.draft_model import DraftModel
from dflash.decode.drafters.first_of import FirstOf
from dflash.decode.drafters.lookup import PromptLookup
from dflash.decode.drafters.mtp import MTP
from dflash.decode.engine import Engine
from dflash.decode.sampling import Sampling
from dflash.decode.session import Session
from dflash.decode.shapes import Chain, Tree
from dflash.decode.strategy import Strategy
from dflash.model.load import load_model

LONG = os.environ.get("DFLASH_LONG") == "1"
"""DFLASH_LONG=1 writes all prompts to their length under every sampling, a test for each, which takes hours on two cores."""

RECORDED = json.loads((DATA / "demo" / "acceptance.json").read_text(encoding="utf-8"))
PROMPTS = [prompt["prompt_ids"] for prompt in RECORDED["prompts"]]
"""Code, text and questions."""

SAMPLINGS = {
    "greedy": {},
    "T 0.7": {"temperature": 0.7},
    "top-p": {"temperature": 1.0, "top_p": 0.9},
    "top-k, min-p": {"temperature": 1.0, "top_k": 40, "min_p": 0.05},
    "penalties": {"temperature": 1.0, "top_p": 0.95, "repetition_penalty": 1.2, "frequency_penalty": 0.2},
}
STRATEGIES = [
    Strategy(DFlash()),
    Strategy(DFlash(), Chain(3)),
    DDTree(budget=22),
    Strategy(DFlash(), Tree(60, depth=6)),
    Strategy(MTP()),
    Strategy(MTP(), Tree(8)),
    Strategy(PromptLookup()),
    Strategy(FirstOf(PromptLookup(), MTP())),
    Strategy(Adaptive(DDTree(budget=32), DFlash(), MTP(), PromptLookup())),
]
UNITS = (
    [(i, name) for i in range(len(PROMPTS)) for name in SAMPLINGS]
    if LONG
    else [(10 * i, name) for i, name in enumerate(SAMPLINGS)]
)
TINY = ["qwen35-r2-mtp-F16", "qwen35moe-r2-F16", "qwen3-dense-Q4_0"]


@cache
def demo():
    return load_model("demo", device="cpu", threads=2, context=2048, sequences=len(STRATEGIES))


def written(model, sessions):
    for _ in Engine(model).run(sessions):
        pass
    for session in sessions:
        if session.error is not None:
            raise session.error
    return [session.tokens for session in sessions]


def compare(model, prompt, strategies, n, **settings):
    """Plain decoding first; then all strategies in one batch."""
    sampling = Sampling(**settings, seed=n)
    plain = Session(prompt, sampling=sampling, max_tokens=n)
    sessions = [Session(prompt, sampling=sampling, max_tokens=n, strategy=strategy) for strategy in strategies]
    (truth,) = written(model, [plain])
    for session, tokens in zip(sessions, written(model, sessions), strict=True):
        assert tokens == truth, repr(session.strategy)
    return sessions


def assert_nothing_is_held(model):
    """Of the model, and of all that was loaded to go with it."""
    pools = [model.pools, *(each.pools for each in model.companions.values() if hasattr(each, "pools"))]
    for pool in pools:
        assert (pool.free_pages, pool.free_slots) == (pool.pages, pool.slots)
    for draft in (each for each in model.companions.values() if hasattr(each, "reach")):
        assert draft.free_slots == model.pools.slots


@pytest.mark.parametrize(("prompt", "name"), UNITS)
def test_the_demo(prompt, name):
    model = demo().model
    for session in compare(model, PROMPTS[prompt], STRATEGIES, 200 if LONG else 24, **SAMPLINGS[name]):
        # texts need not repeat themselves, and who chooses may find that nothing pays
        unsure = isinstance(session.strategy.drafter, PromptLookup | Adaptive)
        assert session.n_accepted > 0 or session.n_tokens < 20 or unsure
    assert_nothing_is_held(model)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("settings", SAMPLINGS.values(), ids=SAMPLINGS)
def test_random_models(name, settings):
    """Where a model is its own small model, sampled guesses are right."""
    model, file = load(name, kv="f16"), str(path_of(name))
    strategies = [
        Strategy(PromptLookup(shortest=1)),
        Strategy(DraftModel(file), Chain(3)),
        Strategy(DraftModel(file), Tree(9)),
        Strategy(FirstOf(PromptLookup(), DraftModel(file))),
        *([Strategy(MTP(), Tree(5))] if "mtp" in name else []),
    ]
    prompt = recorded(name)["tokens"][: int(recorded(name)["n_prompt"])].tolist()
    sessions = compare(model, prompt, strategies, 40, **settings)
    assert sessions[1].n_accepted > 15 or "repetition_penalty" in settings
    assert_nothing_is_held(model)


@pytest.mark.parametrize("kind", drafts.KINDS)
def test_random_drafts(kind, tmp_path, monkeypatch):
    """Guesses that are right by chance alone change nothing either."""
    model = load("qwen35-r2-untied-F32", kv="f16")
    config = model.config
    sizes = {"width": config.width, "n_vocab": config.n_vocab, "mask": 5, "taps": (0, config.n_layers - 1)}
    made = replace(drafts.KINDS[kind], **sizes)
    monkeypatch.setattr(drafts, "VOCAB", config.n_vocab)
    path = drafts.write_gguf(tmp_path / "draft.gguf", made, drafts.random_weights(made, n_head=config.n_vocab))
    strategies = [Strategy(DFlash(str(path)), shape) for shape in (None, Chain(2), Tree(22), Tree(40, width=3))]
    prompt = np.random.default_rng(3).integers(0, config.n_vocab, 90).tolist()
    for settings in list(SAMPLINGS.values())[::2]:
        sessions = compare(model, prompt, strategies, 30, **settings)
        assert all(session.n_drafted > 0 for session in sessions)
    assert_nothing_is_held(model)
    model.companions.close()


def test_different_strategies_samplings_and_prompts_in_one_batch():
    """Each text is what it is alone."""
    model, alone, together = demo().model, [], []
    for i, strategy in enumerate(STRATEGIES):
        settings = {"sampling": Sampling(**list(SAMPLINGS.values())[i % 5], seed=i), "max_tokens": 12 + i}
        prompt = PROMPTS[3 * i]
        alone += written(model, [Session(prompt, **settings)])
        together.append(Session(prompt, **settings, strategy=strategy))
    assert written(model, together) == alone
    assert_nothing_is_held(model)
