"""Properties of a model on the CPU, where prompts may be split into chunks of any size."""

import pytest
from compare import assert_same_bits
from golden import load, prefill
from model_laws import *  # noqa: F403
from model_laws import MODELS, assert_same_state, text


@pytest.fixture(params=MODELS)
def model(request):
    model = load(request.param, kv="f16")
    model.name = request.param
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
