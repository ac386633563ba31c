"""Models on a GPU that store few pending rows."""

import pytest
from golden import load
from pending_laws import *  # noqa: F403

pytest.importorskip("cupy")


@pytest.fixture(params=["qwen35-r2-untied-F32", "qwen3next-tiny-Q8_0"])
def load_with(request):
    return lambda pending: load(request.param, kv="f16", device="cuda", pending=pending)
