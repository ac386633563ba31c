"""The demo model against recorded greedy tokens, and against tensors of Transformers if the large file is available."""

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from demo_text import greedy_prompts, recorded_prompts
from golden import chain, prefill, step

from dflash.model.batch import Span
from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile
from dflash.model.model import Model

PACKAGED = Path(__file__).parents[2] / "dflash" / "data" / "demo-Q4_K_M.gguf"
DATA = Path(__file__).parents[1] / "data" / "demo"
FOLDER = Path(os.environ.get("DFLASH_DEMO") or "/nowhere")
"""DFLASH_DEMO may name a folder with demo-bf16.gguf and its recorded tensors."""

MARGIN = {"f32": 5e-3, "f16": 2e-2}
"""Largest accepted error of a difference of two log-probabilities; measured are 1.6e-3 and 4.4e-3."""

PROMPTS = recorded_prompts()


@cache
def load(path, kv):
    file = GGUFFile.open(path)
    return Model(file, Config.from_gguf(file.metadata, file.tensors), pages=48, slots=6, kv=kv, threads=2)


def check_greedy(model, prompt_ids, output_ids, margins, bound, name):
    """Prefill the recorded text: each recorded token must have the largest logit, unless its margin is within the error."""
    ids = np.array(prompt_ids + output_ids, np.int32)[:-1]
    state = model.state()
    logits = model.forward([Span(state, ids, chain(len(ids)), prefill=True)]).logits[len(prompt_ids) - 1 :]
    state.close()
    margins = np.array(margins)
    first_two = -np.partition(-logits, 1, axis=1)[:, :2]
    picked = logits.argmax(axis=1)
    for i in np.flatnonzero(picked != output_ids):
        assert margins[i] < bound, (
            f"{name}: token {i} is {picked[i]}, recorded {output_ids[i]} with a margin of {margins[i]}"
        )
    close = margins < 5
    off = np.abs(first_two[:, 0] - first_two[:, 1] - margins)[close]
    assert off.size == 0 or off.max() < bound, f"{name}: a margin is off by {off.max()}"


@pytest.mark.parametrize("kv", ["f32", "f16"])
@pytest.mark.parametrize("kind", sorted({prompt["kind"] for prompt in PROMPTS}))
def test_recorded_greedy_tokens(kind, kv):
    model, prompts = load(PACKAGED, kv), [prompt for prompt in PROMPTS if prompt["kind"] == kind]
    for prompt in prompts if kv == "f32" else prompts[::3]:
        check_greedy(model, prompt["prompt_ids"], prompt["output_ids"], prompt["margins"], MARGIN[kv], prompt["name"])


@pytest.mark.parametrize("prompt", PROMPTS[:3], ids=lambda p: p["name"])
def test_steps_give_the_bits_of_a_prefill(prompt):
    model = load(PACKAGED, "f16")
    one, other = model.state(), model.state()
    ids = prompt["prompt_ids"] + prompt["output_ids"][:40]
    want, _ = prefill(model, one, ids)
    n = len(prompt["prompt_ids"])
    prefill(model, other, ids[:n], chunk=50)
    at = n
    for size in (1, 1, 3, 16, 1, 7):
        part = ids[at : at + size]
        got = step(model, other, part)
        other.commit(range(len(part)))
        assert got.tobytes() == want[at : at + size].tobytes()
        at += size
    one.close(), other.close()


@pytest.mark.skipif(not (FOLDER / "demo-bf16.gguf").exists(), reason="DFLASH_DEMO names no folder with demo-bf16.gguf")
class TestLargeFile:
    """The bf16 file, which is not part of the project."""

    def test_tensors_of_the_demo_are_as_recorded(self):
        model = load(FOLDER / "demo-bf16.gguf", "f32")
        want = np.load(FOLDER / "golden" / "target_ref.npz")
        for name in ("p0", "p1", "p2"):
            state = model.state()
            layers = tuple(range(8)) if name == "p0" else ()
            logits, captured = prefill(model, state, want[f"{name}_ids"], capture=layers)
            state.close()
            bound = 1e-3 if want[f"{name}_logits"].dtype == np.float32 else 1e-2
            assert np.abs(logits - want[f"{name}_logits"]).max() < bound
            for layer in layers:
                assert np.abs(captured[layer] - want[f"{name}_layer_outputs"][layer]).max() < 1e-3, layer

    def test_greedy_outputs_of_the_demo_are_as_recorded(self):
        model = load(FOLDER / "demo-bf16.gguf", "f32")
        for prompt in greedy_prompts():
            check_greedy(model, prompt["prompt_ids"], prompt["output_ids"], prompt["margins"], 1e-3, prompt["prompt"][:20])
