"""The laws of the loop on real arithmetic, on the CPU."""

import pytest
from loop_laws import *  # noqa: F403
from loop_laws import MODELS, loaded


@pytest.fixture(params=MODELS)
def model_and_prompt(request):
    model, prompt = loaded(request.param, "cpu")
    before = model.pools.free_pages, model.pools.free_slots
    yield model, prompt
    assert (model.pools.free_pages, model.pools.free_slots) == before
