"""Tokens a step against recorded numbers, for chains and trees of the demo's draft."""

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from demo_text import recorded_acceptance, recorded_prompts
from golden import chain

import dflash
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.kernels.sample import SampleParams
from dflash.model.batch import Span
from dflash.model.draft import DraftRequest, load_draft
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model

FOLDER = Path(os.environ.get("DFLASH_DEMO") or "/nowhere")
"""DFLASH_DEMO may name a folder with demo-bf16.gguf and its draft."""

RECORDED = recorded_acceptance()
PAIR = RECORDED["q4_k_m_pair"]
SHAPES = {
    "dflash_chain16": Chain(),
    "ddtree_8": Tree(8),
    "ddtree_16": Tree(16),
    "ddtree_22": Tree(22),
    "ddtree_32": Tree(32),
}
KINDS = ("code", "text", "chat")
NEW_TOKENS = 64


@cache
def pair(target, draft):
    model = load_model(target, LoadSettings(device="cpu", threads=2, context=2048, sequences=2)).model
    return model, load_draft(draft, model, sequences=1)


def steps_of(model, draft, prompt, output, shape):
    """Tokens of each step if the target says what was recorded: the longest way through the draft tokens, and one more."""
    text, at = [*prompt, *output], len(prompt)
    end, state, target = min(at + NEW_TOKENS, len(text)), draft.state(), model.state()
    span = Span(target, np.array(text, np.int32), chain(len(text)), prefill=True, logits=False)
    features = model.forward([span], capture=draft.config.target_layer_ids).captured
    draft.read(state, features, slice(0, at))
    n, width = shape.wants(draft.config.max_draft, 63)
    found = []
    while at + 1 < end:
        (candidates,) = draft.propose([DraftRequest(state, text[at], n, SampleParams(), width)])
        draft_tokens, node, kept = shape.draft(candidates, 63), -1, 1
        while at + kept + 1 < len(text) and (node := draft_tokens.child(node, text[at + kept])) >= 0:
            kept += 1
        draft.read(state, features, slice(at, at + kept))
        found.append(kept)
        at += kept
    state.close()
    target.close()
    return found


def assert_like(found, recorded, bound):
    """By kind, within a part of what was recorded; of the last steps, some were cut."""
    for kind in KINDS:
        got, want = (np.mean([step for steps in each[kind] for step in steps[:-1]]) for each in (found, recorded))
        assert abs(got / want - 1) < bound, (kind, got, want)


def test_the_packaged_pair():
    """A few prompts of each kind; all of them are recorded for the chain."""
    outputs = {prompt["name"]: prompt["output_ids"] for prompt in recorded_prompts()}
    prompts = {prompt["name"]: prompt["prompt_ids"] for prompt in RECORDED["prompts"]}
    model, draft = pair("demo", "demo-draft")
    chains, trees, recorded = ({kind: [] for kind in KINDS} for _ in range(3))
    for kind in KINDS:
        for prompt in [prompt for prompt in PAIR["prompts"] if prompt["kind"] == kind][:2]:
            given = model, draft, prompts[prompt["name"]], outputs[prompt["name"]]
            chains[kind].append(steps_of(*given, Chain()))
            trees[kind].append(steps_of(*given, Tree(32)))
            recorded[kind].append(prompt["steps"]["draft-Q4_K_M"])
    assert_like(chains, recorded, 0.03)
    for kind in KINDS:
        assert sum(map(len, trees[kind])) < sum(map(len, chains[kind]))


@pytest.mark.skipif(not (FOLDER / "draft").exists(), reason="DFLASH_DEMO names no folder with the draft")
@pytest.mark.parametrize("name", SHAPES)
def test_accepted_tokens_of_all_prompts_are_as_recorded(name):
    model, draft = pair(FOLDER / "demo-bf16.gguf", FOLDER / "draft")
    found, recorded = ({kind: [] for kind in KINDS} for _ in range(2))
    for prompt in RECORDED["prompts"]:
        found[prompt["kind"]].append(steps_of(model, draft, prompt["prompt_ids"], prompt["output_ids"], SHAPES[name]))
        recorded[prompt["kind"]].append(prompt["steps"][name])
    assert_like(found, recorded, 0.03)


@pytest.mark.skipif(not FOLDER.is_dir(), reason="DFLASH_DEMO names no folder with demo-bf16.gguf")
@pytest.mark.parametrize("depth", range(1, 5))
def test_mtp_on_all_prompts(depth):
    """Whole texts: what the head reads of the model is there only as the model writes."""
    lm = dflash.load(str(FOLDER / "demo-bf16.gguf"), device="cpu", context=1024)
    found, recorded = ({kind: [] for kind in KINDS} for _ in range(2))
    for prompt in RECORDED["prompts"]:
        strategy = dflash.Strategy(dflash.MTP(), Chain(depth))
        text = lm.generate(prompt["prompt_ids"], strategy=strategy, max_tokens=NEW_TOKENS, temperature=0)
        found[prompt["kind"]].append([len(step.tokens) for step in text.steps if step.tokens][1:])
        recorded[prompt["kind"]].append(prompt["steps"][f"mtp_{depth}"])
    assert_like(found, recorded, 0.03)
