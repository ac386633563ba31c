"""No draft token changes a text: every drafter in every shape, however tokens are picked, alone and in company."""

from dataclasses import replace

import drafts
import numpy as np
import pytest
from golden import load, path_of, recorded
from lossless import PROMPTS, SAMPLINGS, STRATEGIES, UNITS, assert_nothing_is_held, assert_unit, compare, demo, margin
from written import run

from dflash.decode import engine as engine_module
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.draft_model import DraftModel
from dflash.decode.drafters.first_of import FirstOf
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session

TINY = [
    "qwen35-r2-mtp-F16",
    "qwen35moe-r2-F16",
    "qwen3-dense-Q4_0",
    "qwen3moe-tiny-Q8_0",
    "qwen3next-tiny-Q8_0",
    "gemma4-tiny-Q8_0",
    "laguna-tiny-Q8_0",
    "llama-tiny-Q8_0",
    "qwen2-tiny-Q8_0",
]


@pytest.mark.parametrize(("prompt", "name"), UNITS)
def test_every_drafter_gives_the_plain_output_of_the_demo(prompt, name):
    assert_unit("cpu", prompt, name)


def test_ties_are_no_differences():
    model, session = demo().model, Session(PROMPTS[0], max_tokens=5)
    (tokens,) = run(model, session)
    assert margin(model, session, 4, tokens[4]) < 1e-4
    assert margin(model, session, 4, tokens[4] + 1) > 0.5


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("settings", SAMPLINGS.values(), ids=SAMPLINGS)
def test_every_drafter_gives_the_plain_output_of_random_models(name, settings):
    """Where a model is its own small model, sampled draft tokens are right."""
    model, file = load(name, kv="f16"), str(path_of(name))
    strategies = [
        Strategy(PromptLookup(min_ngram=1)),
        Strategy(DraftModel(file), Chain(3)),
        Strategy(DraftModel(file), Tree(9)),
        Strategy(FirstOf(PromptLookup(), DraftModel(file))),
        *([Strategy(MTP(), Tree(5))] if "mtp" in name else []),
    ]
    prompt = recorded(name)["tokens"][: int(recorded(name)["n_prompt"])].tolist()
    sessions, _ = compare(model, prompt, strategies, 40, **settings)
    assert sessions[1].n_accepted > 15 or "repetition_penalty" in settings
    assert_nothing_is_held(model)


@pytest.mark.parametrize("kind", drafts.KINDS)
def test_random_drafts_give_the_plain_output(kind, tmp_path, monkeypatch):
    """Drafts that are right by chance alone change nothing either."""
    model = load("qwen35-r2-untied-F32", kv="f16")
    config = model.config
    sizes = {"width": config.width, "n_vocab": config.n_vocab, "mask": 5, "target_layer_ids": (0, config.n_layers - 1)}
    made = replace(drafts.KINDS[kind], **sizes)
    monkeypatch.setattr(drafts, "VOCAB", config.n_vocab)
    path = drafts.write_gguf(tmp_path / "draft.gguf", made, drafts.random_weights(made, n_head=config.n_vocab))
    strategies = [Strategy(DFlash(str(path)), shape) for shape in (None, Chain(2), Tree(22), Tree(40, width=3))]
    prompt = np.random.default_rng(3).integers(0, config.n_vocab, 90).tolist()
    for settings in list(SAMPLINGS.values())[::2]:
        sessions, _ = compare(model, prompt, strategies, 30, **settings)
        assert all(session.n_drafted > 0 for session in sessions)
    assert_nothing_is_held(model)
    model.attachments.close()


def test_different_strategies_samplings_and_prompts_in_one_batch(monkeypatch):
    """Each text is what it is alone, also with a draft budget, whose choices follow times that are made up here."""
    model, alone, together, times = demo().model, [], [], np.random.default_rng(2).exponential(size=9999).cumsum()
    for i, strategy in enumerate(STRATEGIES):
        settings = {"sampling": Sampling(**list(SAMPLINGS.values())[i % 5], seed=i), "max_tokens": 12 + i}
        prompt = PROMPTS[3 * i]
        alone += run(model, Session(prompt, **settings))
        together.append([Session(prompt, **settings, strategy=strategy) for _ in range(2)])
    assert run(model, *(first for first, _ in together)) == alone
    monkeypatch.setattr(engine_module, "perf_counter", iter(times).__next__)
    assert run(model, *(second for _, second in together), draft_budget=True) == alone
    drafted = [[sum(step.drafted for step in session.steps) for session in pair] for pair in together]
    assert any(limited < fixed for fixed, limited in drafted)
    assert_nothing_is_held(model)
