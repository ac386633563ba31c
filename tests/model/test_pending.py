"""Models on the CPU that store few pending rows."""

import pytest
from golden import load
from pending_laws import *  # noqa: F403


@pytest.fixture(params=["qwen35-r2-untied-F32", "qwen35-r3-tied-k-IQ4_XS", "qwen3next-tiny-Q8_0"])
def load_with(request):
    return lambda pending: load(request.param, kv="f16", pending=pending)
