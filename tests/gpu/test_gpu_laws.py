"""The laws of a model on a GPU."""

import pytest
from golden import load
from model_laws import *  # noqa: F403
from model_laws import MODELS

QUANTIZED = ["qwen35-r2-untied-F32", "qwen35-r3-tied-k-IQ4_XS"]
"""Models with heads of 64 and of 256, of which these laws also hold with a quantized cache."""


@pytest.fixture(
    params=[
        *(f"{name} f16" for name in MODELS),
        *(f"{name} {kv}" for name in QUANTIZED for kv in ("q8_0", "q4_0")),
        f"{QUANTIZED[0]} q8_0/q4_0",
    ]
)
def model(request):
    name, kv = request.param.split()
    model = load(name, kv=kv, device="cuda")
    model.name = name
    before = model.pools.free_pages, model.pools.free_slots
    yield model
    assert (model.pools.free_pages, model.pools.free_slots) == before
