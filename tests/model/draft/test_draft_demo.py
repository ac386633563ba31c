"""The demo's draft model against its formulas, recorded accepted lengths, and recorded tensors if available."""

from functools import cache

import gguf
import numpy as np
import pytest
from demo_text import recorded_acceptance
from draft_oracle import Oracle
from golden import chain
from test_demo import FOLDER, PACKAGED, PROMPTS, load

from dflash.kernels.sample import SampleParams
from dflash.model.batch import Span
from dflash.model.draft import DraftRequest, load_draft

SHORT = ("greedy00", "code_heapq", "text01", "text05", "chat00", "chat06")
"""Prompts used where all fifty would take too long."""

STEPS = {prompt["name"]: prompt["steps"]["draft-Q4_K_M"] for prompt in recorded_acceptance()["q4_k_m_pair"]["prompts"]}


@cache
def packaged_draft(kv):
    return load_draft("demo-draft", load(PACKAGED, kv), sequences=2)


def captured(model, ids, taps):
    """Return the features of a whole text."""
    state = model.state()
    out = model.forward([Span(state, np.array(ids, np.int32), chain(len(ids)), prefill=True, logits=False)], capture=taps)
    state.close()
    return out.captured


@cache
def unpacked(path, *names):
    """Tensors of a GGUF file by the `gguf` package, in their NumPy shapes; all of them if none is named."""
    tensors = [t for t in gguf.GGUFReader(path).tensors if not names or t.name in names]
    return {t.name: gguf.quants.dequantize(t.data, t.tensor_type).reshape(t.shape[::-1]) for t in tensors}


@pytest.mark.parametrize("n", [40, 700])
def test_draft_rows_of_the_demo_are_as_recorded(n):
    """Beyond 512 positions, all layers except the last are limited by their windows."""
    model, draft = load(PACKAGED, "f32"), packaged_draft("f32")
    ids = [token for prompt in PROMPTS for token in prompt["prompt_ids"]][:n]
    features, config = captured(model, ids, draft.config.target_layer_ids), draft.config
    weights = unpacked(PACKAGED.with_name("draft-Q4_K_M.gguf"))
    (table,) = unpacked(PACKAGED, "token_embd.weight").values()
    oracle = Oracle(config, weights, table, table)
    oracle.read(np.concatenate([features[tap] for tap in config.target_layer_ids], axis=1))
    state = draft.state()
    draft.read(state, features, slice(0, n))
    (found,) = draft.propose([DraftRequest(state, 77, 15, SampleParams(), 64)])
    state.close()
    want = oracle.block(77, 16)[1][1:]
    want -= np.log(np.exp(want - want.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)) + want.max(
        axis=1, keepdims=True
    )
    np.testing.assert_allclose(found.scores, np.take_along_axis(want, found.ids, axis=1), atol=5e-3)
    np.testing.assert_allclose(found.scores, -np.sort(-want, axis=1)[:, :64], atol=5e-3)


def accepted(model, draft, prompt, n=15, new_tokens=64):
    """Tokens of each step if the target generates the recorded text: accepted draft tokens and the bonus token."""
    start = len(prompt["prompt_ids"])
    ids = prompt["prompt_ids"] + prompt["output_ids"]
    end = min(start + new_tokens, len(ids))  # the last step may go beyond
    features, state, steps, at = captured(model, ids, draft.config.target_layer_ids), draft.state(), [], start
    draft.read(state, features, slice(0, at))
    while at + 1 < end:
        (found,) = draft.propose([DraftRequest(state, ids[at], n, SampleParams(), 1)])
        draft_tokens, truth, kept = found.ids[:, 0].tolist(), ids[at + 1 :], 0
        while kept < min(len(draft_tokens), len(truth) - 1) and draft_tokens[kept] == truth[kept]:
            kept += 1
        draft.read(state, features, slice(at, at + kept + 1))
        steps.append(kept + 1)
        at += kept + 1
    state.close()
    return steps


@pytest.mark.parametrize("prompt", [p for p in PROMPTS if p["name"] in SHORT], ids=lambda p: p["name"])
def test_accepted_tokens_of_the_demo_are_as_recorded(prompt):
    assert accepted(load(PACKAGED, "f32"), packaged_draft("f32"), prompt) == STEPS[prompt["name"]]


@pytest.mark.skipif(not (FOLDER / "draft").exists(), reason="DFLASH_DEMO names no folder with the draft")
class TestLargeFile:
    """The bf16 files, which are not part of the project."""

    @pytest.mark.parametrize(("name", "bound"), [("draft_ref", 1e-3), ("draft_ref_long", 2e-2)])
    def test_tensors_of_the_demo_draft_are_as_recorded(self, name, bound):
        want = np.load(FOLDER / "golden" / f"{name}.npz")
        draft = load_draft(FOLDER / "draft", load(FOLDER / "demo-bf16.gguf", "f32"), sequences=1)
        n, width = int(want["anchor_position"]), draft.config.width
        features = want["features"].astype(np.float32)
        state, seen = draft.state(), []
        draft.read(
            state, {t: features[:, i * width :][:, :width] for i, t in enumerate(draft.config.target_layer_ids)}, slice(0, n)
        )
        choose = draft._choose
        draft._choose = lambda asks, hidden, logits: seen.extend((hidden, logits)) or choose(asks, hidden, logits)
        (found,) = draft.propose([DraftRequest(state, int(want["block_ids"][0]), 15, SampleParams(), 1)])
        assert np.abs(seen[0] - want["draft_hidden"][1:]).max() < bound
        if "draft_logits" in want.files:
            assert np.abs(seen[1] - want["draft_logits"][1:]).max() < bound
        else:
            np.testing.assert_array_equal(found.ids[:, 0], want["draft_argmax"][1:])
