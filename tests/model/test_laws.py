"""Properties of a model on the CPU, where prompts may be split into chunks of any size."""

import pytest
from compare import assert_same_bits
from golden import load, prefill
from model_laws import *  # noqa: F403
from model_laws import MODELS, assert_same_state, text

QUANTIZED = ["qwen35-r2-untied-F32", "qwen35-r3-tied-k-IQ4_XS"]
"""Models with heads of 64 and of 256, of which these laws also hold with a quantized cache."""


@pytest.fixture(
    params=[*(f"{name} f16" for name in MODELS), *(f"{name} q8_0" for name in QUANTIZED), f"{QUANTIZED[0]} q4_0"]
)
def model(request):
    name, kv = request.param.split()
    model = load(name, kv=kv)
    model.name = name
    before = model.pools.free_pages, model.pools.free_slots
    yield model
    assert (model.pools.free_pages, model.pools.free_slots) == before


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_are_one_prefill(model, chunk):
    tokens = text(model, 130)
    one, other = model.state(), model.state()
    want, _ = prefill(model, one, tokens)
    got, _ = prefill(model, other, tokens, chunk=chunk)
    assert_same_bits("logits", got, want)
    assert_same_state("state", model, other, one)
    one.close(), other.close()
