"""States of a GPU in files: every bit comes back, for the target and for drafters."""

import numpy as np
import pytest

from dflash.decode.drafters import Strategy
from dflash.decode.engine import Engine
from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.prefix_cache.disk import DiskTier, SavedState
from dflash.decode.prefix_cache.disk.identity import identity_of
from dflash.decode.session import Session
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model

MUCH = 1 << 30


@pytest.fixture(scope="module", params=["f16", "f32", "q8_0", "q8_0/q4_0", "q4_0"])
def loaded(request):
    return load_model("demo", LoadSettings(device="cuda", context=2048, sequences=3, kv=request.param))


def run(engine, prompt, name):
    session = Session(prompt, strategy=Strategy.of(name), max_tokens=40)
    list(engine.run([session]))
    assert session.error is None
    return session


@pytest.mark.parametrize("name", ["plain", "dflash", "mtp:2", "first(lookup,mtp:2)"])
def test_a_state_from_disk_is_the_state_of_memory(loaded, tmp_path, name):
    """A session that begins with a file continues as one that begins with the snapshot in memory, bit for bit."""
    model, free = loaded.model, loaded.model.pools.free_pages
    prompt = loaded.tokenizer.encode("def add(a, b):\n    return a + b\n\n\n" * 60)[:700]

    def cache():
        disk = DiskTier(tmp_path, MUCH, identity_of(loaded, exact=False), min_gain=32)
        return PrefixCache(MUCH, model.pools.page_bytes, exact=False, disk=disk)

    engine = Engine(model, prefix_cache=cache())
    run(engine, prompt, name)
    in_memory = run(engine, prompt, name)
    ids = np.array(prompt[:-1], np.int32)
    want = SavedState.of(engine.prefix_cache.longest(ids, Strategy.of(name).drafter), "same")
    engine.prefix_cache.close()
    assert engine.prefix_cache.disk.stats.writes == 2

    engine = Engine(model, prefix_cache=cache())
    from_disk = run(engine, prompt, name)
    assert (from_disk.n_cached, in_memory.n_cached) == (699, 699)
    assert engine.prefix_cache.disk.stats.hits == 1
    assert from_disk.output_ids == in_memory.output_ids
    assert [step.accepted for step in from_disk.steps] == [step.accepted for step in in_memory.steps]
    got = SavedState.of(engine.prefix_cache.longest(ids, Strategy.of(name).drafter), "same")
    assert list(got.arrays) == list(want.arrays)
    assert got.drafter == want.drafter
    for key, array in want.arrays.items():
        assert isinstance(got.arrays[key], np.ndarray)
        assert got.arrays[key].tobytes() == array.tobytes(), key
    engine.prefix_cache.clear()
    assert model.pools.free_pages == free
