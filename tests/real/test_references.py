"""Published models: logits, greedy tokens and likelihoods as Transformers computes them in float32 from the same weights."""

from functools import cache

import numpy as np
import pytest
from compare import assert_close
from golden import host, prefill, step
from model_definition import logits as definition
from real_models import DEVICE, FILES, NEAR, THREADS, path_of, references_of

from dflash.generation.prompts import encode
from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile
from dflash.model.model import Model
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer

pytestmark = pytest.mark.real

LOGITS, RMS = 5e-4, 5e-5
"""Largest difference of a logit, and RMS error over RMS, as for the recorded random models."""
ON_GPU = 4e-3
"""RMS error over RMS on a GPU, where operands are float16."""
LIKELIHOOD = 0.005
"""Largest relative difference of a perplexity."""


@cache
def opened(name):
    file = GGUFFile.open(path_of(name))
    return file, Config.from_gguf(file.metadata, file.tensors)


@cache
def model_of(name, kv):
    file, config = opened(name)
    if DEVICE == "cuda":
        from dflash.model.cuda.model import DeviceModel

        return DeviceModel(file, config, pages=16, slots=4, kv=kv, threads=THREADS, chunk=1024)
    return Model(file, config, pages=16, slots=4, kv=kv, threads=THREADS)


@cache
def logits_of_source(name, kv):
    """Logits of the recorded text, 1,024 tokens of Python."""
    model = model_of(name, kv)
    state = model.state()
    rows, _ = prefill(model, state, references_of(name)[0]["long.ids"])
    state.close()
    return rows


def nll(rows, ids):
    """Negative log-likelihood of each next token."""
    rows = rows[: len(ids) - 1].astype(np.float64)
    largest = rows.max(-1)
    sums = np.log(np.exp(rows - largest[:, None]).sum(-1)) + largest
    return sums - rows[np.arange(len(rows)), ids[1:]]


@pytest.mark.parametrize("name", FILES)
def test_prompts_have_the_recorded_ids(name):
    metadata = opened(name)[0].metadata
    tokenizer = Tokenizer.from_gguf(metadata)
    template = ChatTemplate(metadata["tokenizer.chat_template"], tokens=tokenizer.special_texts())
    want, prompts = references_of(name)
    for k, prompt in prompts.items():
        assert list(tokenizer.encode(prompt["prompt"])) == want[f"{k}.prompt_ids"].tolist()
        if not prompt["tools"]:
            assert encode(prompt["messages"], tokenizer, template) == want[f"{k}.prompt_ids"].tolist()


@pytest.mark.parametrize("name", FILES)
def test_logits_equal_the_reference(name):
    want, _ = references_of(name)
    rows, last = logits_of_source(name, "f32"), want["long.last_logits"]
    if DEVICE == "cuda":
        assert_close(name, rows[-len(last) :], last, ON_GPU)
        return
    best = want["long.top_ids"].astype(np.int64)
    at, top = np.arange(len(best))[:, None], want["long.top_logits"]
    defined = definition(*opened(name), want["long.ids"], rounding=True)  # what rounding of tokens to 16 bits alone changes
    change = np.sqrt(np.mean((defined[-len(last) :] - last) ** 2) / np.mean(last.astype(np.float64) ** 2))
    changes, errors = defined[at, best] - top, rows[at, best] - top
    print(f"{name}: RMS {change:.3g}, largest {np.abs(changes).max():.3g} by rounding; largest {np.abs(errors).max():.3g}")
    assert_close(name, rows[-len(last) :], last, RMS + 1.2 * change)
    assert np.abs(errors).max() < LOGITS + 1.5 * np.abs(changes).max()


@pytest.mark.parametrize("kv", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("name", FILES)
def test_perplexity_equals_the_reference(name, kv):
    want, _ = references_of(name)
    own, recorded = nll(logits_of_source(name, kv), want["long.ids"]).mean(), want["long.nll"].mean()
    print(f"{name} {kv}: perplexity {np.exp(own):.6f}, recorded {np.exp(recorded):.6f}")
    assert np.exp(own) == pytest.approx(np.exp(recorded), rel=LIKELIHOOD)


@pytest.mark.parametrize("kv", ["f32", "f16"])
@pytest.mark.parametrize("name", FILES)
def test_greedy_tokens_equal_the_reference(name, kv):
    """The recorded tokens, read one at a time, win wherever the recorded gap is clear."""
    want, prompts = references_of(name)
    model, n = model_of(name, kv), 0
    for k in prompts:
        prompt, output, gaps = (want[f"{k}.{part}"] for part in ("prompt_ids", "output_ids", "gap"))
        state = model.state()
        row = host(prefill(model, state, prompt)[0])[-1]
        for i, (token, gap) in enumerate(zip(output, gaps, strict=True)):
            assert row.argmax() == token or gap < NEAR, f"prompt {k}, token {i}, gap {gap}"
            n += gap >= NEAR
            row = step(model, state, [token])[0]
            state.commit([0])
        state.close()
    assert n > 250
