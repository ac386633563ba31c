"""Fixtures shared by several test folders."""

import gc
import zlib
from pathlib import Path

import matrices
import numpy as np
import pytest
from paced import Clock
from packed_models import unpack_golden_models

import dflash
from dflash.kernels import copy

pytest.register_assert_rewrite("model_laws", "loop_laws")
unpack_golden_models()

LONG = (
    "kernels/test_cuda_compile.py",
    "test_doors.py",
    "kernels/test_cuda_compile_prefill.py",
    "kernels/gpu/test_emulator.py",
    "kernels/test_cuda_compile_attention.py",
    "model/test_demo.py",
    "kernels/test_cuda_compile_delta.py",
    "kernels/test_delta.py",
    "kernels/test_cuda_compile_sample.py",
    "kernels/test_cuda_compile_moe.py",
    "kernels/test_linear.py",
    "model/draft/test_draft.py",
    "test_notebooks.py",
    "decode/test_lossless.py",
    "decode/verifiers/test_verifiers.py",
    "kernels/test_sample.py",
    "decode/test_snapshot.py",
    "decode/test_real.py",
    "kernels/cpu/test_jit.py",
    "serve/test_nothing_grows.py",
    "serve/test_request_fuzz.py",
)
"""Slow files in order of start: CUDA compiles in one process while another one fills the numba cache."""


def pytest_configure(config):
    """Let no property fail because the machine is slow. The tests of a GPU need no Hypothesis."""
    copy.GIBIBYTE = 1 << 24  # studies and `bench` measure the bandwidth of a copy, of whose size no test depends
    if config.pluginmanager.hasplugin("hypothesispytest"):
        from hypothesis import HealthCheck, settings

        settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("no clock")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Find the tests without garbage collections, a quarter of the time; later ones pass over the 600,000 objects found."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(items):
    """Let short files fill the gaps at the end."""
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONG)}
    assert all(path.is_file() for path in places), "a slow file has another name"
    items.sort(key=lambda item: places.get(item.path, len(LONG)))


def seed(module, name):
    """Make the `RNG` of a test module and that of random matrices anew, from a name."""
    for each in (module, matrices):
        if hasattr(each, "RNG"):
            each.RNG = np.random.default_rng(zlib.crc32(name.encode()))


def pytest_fixture_setup(fixturedef, request):
    """Let the random numbers of a module's fixture depend on its name and parameter alone."""
    if fixturedef.scope == "module":
        seed(request.module, f"{fixturedef.argname}[{request.param_index}]")


@pytest.fixture(autouse=True)
def seeded(request):
    """Let the random numbers of a test depend on its name alone, not on the tests before it."""
    seed(request.module, request.node.name)


@pytest.fixture(scope="session")
def lm():
    """Demo model on one thread, since tests run in parallel; batches of eight. All its kernels are compiled."""
    with dflash.load("demo", device="cpu", threads=1, context=8192) as lm:
        lm.model.compiled.wait()
        yield lm


@pytest.fixture
def pools(lm):
    """Pools of the demo, which a test must leave as they were."""
    pools = lm.model.pools
    before = pools.free_pages, pools.free_slots
    assert before == (pools.pages, pools.slots), "an earlier test has left something behind"
    yield pools
    assert (pools.free_pages, pools.free_slots) == before


@pytest.fixture
def clock(monkeypatch):
    """Simulated clock of the engine and of adaptive drafters."""
    clock = Clock()
    monkeypatch.setattr("dflash.decode.engine.perf_counter", clock)
    monkeypatch.setattr("dflash.decode.drafters.adaptive.measuring.perf_counter", clock)
    return clock
