"""The laws of a model on a GPU."""

import model_laws
import pytest
from golden import load
from model_laws import *  # noqa: F403
from model_laws import MODELS

from dflash.kernels.gpu.capabilities import capabilities

QUANTIZED = ["qwen35-r2-untied-F32", "qwen35-r3-tied-k-IQ4_XS"]
"""Models with heads of 64 and of 256, of which these laws also hold with a quantized cache."""

INT8 = 0.1
"""`model_laws.CLOSE` of prompts with int8 products."""


@pytest.fixture(
    params=[
        *(f"{name} f16" for name in MODELS),
        *(f"{name} {kv}" for name in QUANTIZED for kv in ("q8_0", "q4_0")),
        f"{QUANTIZED[0]} q8_0/q4_0",
        f"{QUANTIZED[1]} f16 int8",
    ]
)
def model(request, monkeypatch):
    name, kv, *int8 = request.param.split()
    if int8:
        if not capabilities().has_wgmma:
            pytest.skip("neither a Hopper GPU nor its target")
        monkeypatch.setattr(model_laws, "CLOSE", INT8)
    model = load(name, kv=kv, device="cuda", prompts=int8[0] if int8 else "f16")
    model.name = name
    before = model.pools.free_pages, model.pools.free_slots
    yield model
    assert (model.pools.free_pages, model.pools.free_slots) == before
