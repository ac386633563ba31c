"""What several test folders share."""

import pytest
from paced import Clock

import dflash

pytest.register_assert_rewrite("model_laws", "loop_laws")


@pytest.fixture(scope="session")
def lm():
    """The demo model, two threads, eight texts at a time."""
    with dflash.load("demo", device="cpu", threads=2, context=8192) as lm:
        yield lm


@pytest.fixture
def pools(lm):
    """The demo's memory, which a test must leave as it found it."""
    pools = lm.model.pools
    before = pools.free_pages, pools.free_slots
    assert before == (pools.pages, pools.slots), "an earlier test has left something behind"
    yield pools
    assert (pools.free_pages, pools.free_slots) == before


@pytest.fixture
def clock(monkeypatch):
    """What tells the loop, and those who choose by it, the time."""
    clock = Clock()
    monkeypatch.setattr("dflash.decode.engine.perf_counter", clock)
    monkeypatch.setattr("dflash.decode.drafters.pace.perf_counter", clock)
    return clock
