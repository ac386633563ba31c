"""The laws of a model on a GPU."""

import pytest
from golden import load
from model_laws import *  # noqa: F403
from model_laws import MODELS


@pytest.fixture(params=MODELS)
def model(request):
    model = load(request.param, kv="f16", device="cuda")
    model.name = request.param
    before = model.pools.free_pages, model.pools.free_slots
    yield model
    assert (model.pools.free_pages, model.pools.free_slots) == before
