"""The tier of the prefix cache on disk with the demo model: warm output is cold output, and no file or disk breaks it."""

import errno
import os
import shutil
import threading

import numpy as np
import pytest

from dflash.decode.drafters import Strategy
from dflash.decode.drafters.draft_model import DraftModel
from dflash.decode.engine import Engine
from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.prefix_cache.disk import DiskTier, saved_state, state_file
from dflash.decode.prefix_cache.disk.identity import identity_of, sources_hash
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.errors import NotFound
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model

ENGINES = []
"""The last engine of the running test, whose memory is released by the next one."""

MUCH = 1 << 30
ONE_STATE = 8 << 20
"""Bytes; a state of 200 tokens takes 6 MB."""
TEXT = "def add(a, b):\n    return a + b\n\n\ndef multiply(a, b):\n    return a * b\n\n" * 16


@pytest.fixture(scope="module", params=["f16", "f32", "q8_0", "q4_0"])
def each_kv(request):
    return load_model("demo", LoadSettings(device="cpu", threads=1, context=1024, sequences=3, kv=request.param))


@pytest.fixture(scope="module")
def loaded():
    return load_model("demo", LoadSettings(device="cpu", threads=1, context=1024, sequences=3))


@pytest.fixture
def ids(loaded):
    free = loaded.model.pools.free_pages
    yield loaded.tokenizer.encode(TEXT)[:300]
    clear_memory()
    assert loaded.model.pools.free_pages == free


def clear_memory():
    while ENGINES:
        ENGINES.pop().prefix_cache.clear()


def engine_of(loaded, folder, *, capacity=MUCH, memory=MUCH, identity=None):
    clear_memory()
    disk = DiskTier(folder, capacity, identity or identity_of(loaded), min_gain=32)
    ENGINES.append(Engine(loaded.model, prefix_cache=PrefixCache(memory, loaded.model.pools.page_bytes, disk=disk)))
    return ENGINES[-1]


def run(engine, prompt, name="plain", **settings):
    session = Session(prompt, strategy=Strategy.of(name), max_tokens=settings.pop("max_tokens", 12), **settings)
    list(engine.run([session]))
    assert session.error is None
    return session


def finished(engine):
    """Write everything and return the counts of the disk."""
    engine.prefix_cache.close()
    return engine.prefix_cache.disk.stats


def files(folder):
    return sorted(folder.glob("*.safetensors"), key=lambda path: (path.stat().st_mtime_ns, path.name))


def one_file(loaded, folder, ids):
    """Save one state and return its file and the output of the session."""
    engine = engine_of(loaded, folder)
    output = run(engine, ids, max_tokens=4).output_ids  # too few for a state at the end
    assert finished(engine).writes == 1
    return files(folder)[0], output


@pytest.mark.parametrize("name", ["plain", "dflash", "mtp:2", "first(lookup,mtp:2)", "draft-model:2"])
def test_warm_is_cold(each_kv, tmp_path, name):
    """A drafter continues with its state: not only the tokens, the accepted drafts are those of a cold start too."""
    loaded, strategy = each_kv, name
    if name.startswith("draft-model"):
        strategy = DraftModel("demo")
    ids = loaded.tokenizer.encode(TEXT)[:300]
    sampling = Sampling() if loaded.model.pools.kv == "f32" else Sampling(temperature=0.8, seed=5)
    folder, free = tmp_path, loaded.model.pools.free_pages
    engine = engine_of(loaded, folder)
    cold = run(engine, ids, strategy, sampling=sampling, max_tokens=24)
    assert finished(engine).writes == 2  # the end of the prompt and that of the session
    engine = engine_of(loaded, folder)
    warm = run(engine, ids, strategy, sampling=sampling, max_tokens=24)
    assert (warm.output_ids, warm.n_cached) == (cold.output_ids, 299)
    accepted = [[step.accepted for step in each.steps if step.tokens] for each in (cold, warm)]
    assert accepted[0] == accepted[1]
    turn = [*cold.token_ids, *ids[:20]]
    after = run(engine, turn, strategy, sampling=sampling)
    assert (after.n_cached, after.output_ids) == (
        len(cold.token_ids) - 1,
        run(Engine(loaded.model), turn, sampling=sampling).output_ids,
    )
    stats = finished(engine)
    assert (stats.hits, stats.hit_tokens) == (1, 299)  # the second turn began with the memory of the first
    assert loaded.model.pools.free_pages == free


def test_a_file_serves_the_drafters_that_it_has_a_state_of(loaded, tmp_path, ids):
    """Others read the prompt again, and save a file of their own for the next process."""
    found = {}
    for round_ in range(2):
        for name in ("dflash", "mtp:2", "plain", "first(lookup,mtp:2)"):
            engine = engine_of(loaded, tmp_path)
            session = run(engine, ids, name)
            found[round_, name] = session.n_cached
            assert session.output_ids == run(Engine(loaded.model), ids).output_ids
            finished(engine)
    assert [*found.values()] == [0, 0, 299, 0, 299, 299, 299, 299]


def test_evicted_states_are_written_once_and_read_again(loaded, tmp_path, ids):
    """A memory that holds one state at a time."""
    engine = engine_of(loaded, tmp_path, memory=ONE_STATE)
    prompts = [ids[start : start + 200] for start in (0, 30, 60)]
    cold = [run(Engine(loaded.model), prompt).output_ids for prompt in prompts]
    for _ in range(3):
        for prompt, want in zip(prompts, cold, strict=True):
            assert run(engine, prompt).output_ids == want
            engine.prefix_cache.disk.flush()
    stats = finished(engine)
    assert (stats.hits, stats.hit_tokens, stats.writes) == (6, 6 * 199, 3)
    assert stats.n_bytes == sum(path.stat().st_size for path in files(tmp_path))


def test_a_busy_writer_drops_states(loaded, tmp_path, ids, monkeypatch):
    """The engine does not wait for the disk."""
    go = threading.Event()
    write = saved_state.SavedState.write
    monkeypatch.setattr(saved_state.SavedState, "write", lambda *given: (go.wait(), write(*given))[1])
    engine = engine_of(loaded, tmp_path, memory=ONE_STATE)
    for start in range(0, 70, 10):
        run(engine, ids[start : start + 200], max_tokens=1)
    assert engine.prefix_cache.disk.stats.dropped >= 2
    go.set()
    stats = finished(engine)
    assert stats.writes + stats.dropped == 7


@pytest.mark.parametrize("cut", [0, 5, 60, "arrays", -40, -1, "flip header", "flip arrays", "longer"])
def test_a_damaged_file_is_removed(loaded, tmp_path, ids, caplog, cut):
    file, cold = one_file(loaded, tmp_path, ids)
    data = bytearray(file.read_bytes())
    if cut == "arrays":
        data = data[: len(data) // 2]
    elif cut == "longer":
        data += b"\0"
    elif isinstance(cut, str):
        data[100 if cut == "flip header" else len(data) // 2] ^= 1
    else:
        data = data[:cut]
    file.write_bytes(data)
    engine = engine_of(loaded, tmp_path)
    session = run(engine, ids, max_tokens=4)
    assert (session.output_ids, session.n_cached) == (cold, 0)
    assert not file.exists()
    assert "removed" in caplog.records[0].getMessage()
    finished(engine)
    warm = run(engine_of(loaded, tmp_path), ids, max_tokens=4)  # it was written again
    assert (warm.output_ids, warm.n_cached, len(caplog.records)) == (cold, 299, 1)


def test_states_of_others_are_ignored(loaded, tmp_path, ids, caplog):
    """Another model, KV type, device or version has another identity; a file under a wrong name stays where it is."""
    file, cold = one_file(loaded, tmp_path, ids)
    identity = identity_of(loaded)
    assert "kv f16, prefill f16" in identity
    others = identity.replace("kv f16", "kv f32"), identity.replace("prefill f16", "prefill int8"), identity[:-1] + "x"
    for other in (*others, "another model"):
        engine = engine_of(loaded, tmp_path, identity=other)
        assert (run(engine, ids, max_tokens=4, use_prefix_cache=True).n_cached, caplog.records) == (0, [])
        ours = engine.prefix_cache.disk.folder.name_of(np.array(ids[:299], np.int32), in_prompt=True)
        wrong = engine.prefix_cache.disk.folder.path_of(ours)
        shutil.copy(file, wrong)
        engine = engine_of(loaded, tmp_path, identity=other)
        session = run(engine, ids, max_tokens=4)
        assert (session.output_ids, session.n_cached) == (cold, 0)
        assert "was saved with" in caplog.records[0].getMessage()
        assert (len(caplog.records), wrong.exists()) == (1, True)
        caplog.clear()


def test_other_sources_have_another_hash(tmp_path):
    hashes = []
    for n, (name, text) in enumerate(
        [("kernels/a.py", "1"), ("kernels/a.py", "2"), ("model/a.py", "1"), ("kernels/b.cu", "1"), ("kernels/a.py", "1")]
    ):
        (tmp_path / str(n) / name).parent.mkdir(parents=True)
        (tmp_path / str(n) / name).write_text(text)
        (tmp_path / str(n) / "cli.py").write_text(f"no kernel {n}")
        hashes.append(sources_hash(tmp_path / str(n)))
    assert (len(set(hashes)), hashes[0]) == (4, hashes[4])


def test_links_and_strange_files_are_left_alone(loaded, tmp_path, ids, caplog):
    file, cold = one_file(loaded, tmp_path / "a", ids)
    folder = tmp_path / "b"
    folder.mkdir(0o700)
    (folder / file.name).symlink_to(file)
    (folder / "notes.txt").write_text("mine")
    before = file.stat()
    engine = engine_of(loaded, folder)
    assert run(engine, ids, max_tokens=4).n_cached == 0
    engine.prefix_cache.disk.folder._index.add(
        engine.prefix_cache.disk.folder.name_of(np.array(ids[:299], np.int32), in_prompt=True)
    )
    engine.prefix_cache.clear()
    assert run(engine, ids, max_tokens=4).output_ids == cold
    assert len(caplog.records) == 1
    assert (folder / file.name).is_symlink()
    finished(engine)  # the state takes the name of the link, which is replaced and not followed
    assert not (folder / file.name).is_symlink()
    assert (file.stat().st_mtime_ns, file.stat().st_size) == (before.st_mtime_ns, before.st_size)
    assert (folder / "notes.txt").read_text() == "mine"
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files(folder))


def test_another_users_folder_is_not_used(loaded, tmp_path, ids, caplog):
    tmp_path.chmod(0o777)
    engine = engine_of(loaded, tmp_path)
    run(engine, ids, max_tokens=4)
    assert (finished(engine).writes, files(tmp_path), len(caplog.records)) == (0, [], 1)


@pytest.mark.parametrize(("place", "code"), [("replace", errno.ENOSPC), ("fdopen", errno.ENOSPC), ("mkstemp", errno.EROFS)])
def test_a_full_or_read_only_disk_ends_writing(loaded, tmp_path, ids, caplog, monkeypatch, place, code):
    file, cold = one_file(loaded, tmp_path, ids)

    def fails(*args, **settings):
        if place == "fdopen":
            os.close(args[0])
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(state_file.tempfile if place == "mkstemp" else state_file.os, place, fails)
    engine = engine_of(loaded, tmp_path)
    for start in (10, 40, 70):
        run(engine, ids[start : start + 200], max_tokens=1)
    stats = finished(engine)
    assert (stats.writes, stats.dropped, len(caplog.records)) == (0, 3, 1)
    assert os.strerror(code) in caplog.records[0].getMessage()
    assert list(tmp_path.iterdir()) == [file]
    monkeypatch.undo()
    assert run(engine, ids, max_tokens=4).output_ids == cold
    assert finished(engine).hits == 1  # files are still read


def test_the_least_recently_used_files_are_removed(loaded, tmp_path, ids):
    engine = engine_of(loaded, tmp_path)
    for start in range(0, 50, 10):
        run(engine, ids[start : start + 200], max_tokens=1)
    assert finished(engine).writes == 5
    found = files(tmp_path)
    for age, path in enumerate(reversed(found)):
        os.utime(path, (1e9 - age, 1e9 - age))
    size = found[0].stat().st_size
    engine = engine_of(loaded, tmp_path, capacity=3 * size)
    assert files(tmp_path) == found[2:]
    run(engine, ids[20:220], max_tokens=1)  # a use makes the oldest the newest
    run(engine, ids[60:260], max_tokens=1)
    stats = finished(engine)
    assert (stats.hits, stats.n_bytes <= 3 * size, found[2].exists(), found[3].exists()) == (1, True, True, False)
    engine = engine_of(loaded, tmp_path, capacity=size // 2)
    run(engine, ids, max_tokens=1)
    assert (finished(engine).files, files(tmp_path)) == (0, [])


def test_a_state_that_leaves_no_page_for_its_session_is_not_loaded(loaded, tmp_path, ids):
    """The session takes all pages: it starts cold instead of waiting for ever."""
    one_file(loaded, tmp_path, ids)
    pools = loaded.model.pools
    others = pools.take_pages(pools.free_pages - 2)
    engine = engine_of(loaded, tmp_path)
    session = run(engine, ids, max_tokens=100)
    assert (session.n_cached, len(session.output_ids)) == (0, 100)
    finished(engine)
    pools.return_pages(others)


def test_a_file_removed_meanwhile_is_a_miss(loaded, tmp_path, ids, caplog, monkeypatch):
    file, cold = one_file(loaded, tmp_path, ids)
    engine = engine_of(loaded, tmp_path)
    monkeypatch.setattr(engine.prefix_cache.disk.folder, "refresh", lambda: None)
    file.unlink()
    assert run(engine, ids, max_tokens=4).output_ids == cold
    assert caplog.records == []
    with pytest.raises(NotFound):
        state_file.read_file(file, MUCH)
