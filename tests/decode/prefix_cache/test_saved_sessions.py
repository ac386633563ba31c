"""Sessions saved by name, in this process and in another one, and the options of the folder."""

from pathlib import Path

import pytest
from python_run import run_python

import dflash
from dflash.__main__ import main
from dflash.errors import FormatError, NotFound, RequestError

SETTINGS = {"device": "cpu", "threads": 1, "context": 1024, "sequences": 2, "prefix_cache": 64 << 20}
STORY = "Once upon a time there was a compiler that could not forget. " * 12
QUESTION = [{"role": "user", "content": STORY}]

CHILD = """
import sys
import dflash
settings = {"device": "cpu", "threads": 1, "context": 1024, "sequences": 2, "prefix_cache": 64 << 20}
with dflash.load("demo", prefix_cache_folder=sys.argv[1], **settings) as lm:
    print(lm.save_session("story", sys.argv[2], strategy="mtp:2"))
    print(*lm.generate([{"role": "user", "content": sys.argv[2] * 2}], max_tokens=20).tokens)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a named session and the states of a process that has ended."""
    return tmp_path_factory.mktemp("states", numbered=True) / "made"


@pytest.fixture(scope="module")
def written(folder):
    done = run_python("-c", CHILD, folder, STORY, cwd=Path(dflash.__file__).parents[1])
    assert done.stderr == ""
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def lm(folder, written):
    with dflash.load("demo", prefix_cache_folder=folder, **SETTINGS) as lm:
        yield lm


def test_another_process_begins_where_one_has_ended(lm, written, folder):
    """Named sessions by request, other states by themselves."""
    (n_saved,), chat = written
    ids = lm.encode(STORY)
    assert n_saved == len(ids) - 1
    assert lm.load_session("story", strategy="mtp:2") == n_saved
    before = lm.info()["prefix_cache"]
    warm = lm.generate(ids, max_tokens=20, strategy="mtp:2")
    cold = lm.generate(ids, max_tokens=20, strategy="mtp:2", prefix_cache=False)
    assert warm.tokens == cold.tokens
    assert [step.accepted for step in warm.steps if step.tokens] == [step.accepted for step in cold.steps if step.tokens]
    after = lm.info()["prefix_cache"]
    assert (after["hit_tokens"] - before["hit_tokens"], after["disk"]["hits"]) == (n_saved, 0)
    assert lm.generate([{"role": "user", "content": STORY * 2}], max_tokens=20).tokens == chat
    disk = lm.info()["prefix_cache"]["disk"]
    assert (disk["hits"], disk["capacity"]) == (1, 16 << 30)
    states = [path.stat().st_size for path in folder.glob("[0-9a-f]*.safetensors")]
    assert disk["n_bytes"] == sum(states) > 0


def test_names_and_paths(lm, tmp_path, folder):
    file = tmp_path / "any.name"
    n = lm.save_session(file, QUESTION)
    assert 0 < len(lm.encode(QUESTION)) - 1 - n < 16  # the state where the answer begins is near enough
    assert file.stat().st_mode & 0o777 == 0o600
    lm.call(lm.prefix_cache.clear)
    assert lm.load_session(file) == n
    before = set(folder.parent.rglob("*"))
    for name in ("../story", "/tmp/story", "", ".hidden", "a/b", "a\\b", "a\0b", "a" * 101, "naïve", 5, None):
        for call in (lm.load_session, lambda name: lm.save_session(name, QUESTION)):
            with pytest.raises(RequestError, match="must be 1 to 100 letters"):
                call(name)
    assert set(folder.parent.rglob("*")) == before


def test_errors_of_files(lm, tmp_path, folder, written):
    with pytest.raises(NotFound, match="no such file"):
        lm.load_session("other")
    data = (folder / "session-story.safetensors").read_bytes()
    bad = tmp_path / "bad"
    bad.write_bytes(data[: len(data) // 2])
    bad.chmod(0o600)
    with pytest.raises(FormatError, match="checksum"):
        lm.load_session(bad)
    link = tmp_path / "link"
    link.symlink_to(folder / "session-story.safetensors")
    with pytest.raises(RequestError, match="can't be read"):
        lm.load_session(link)
    with pytest.raises(RequestError, match="can't be written"):
        lm.save_session(tmp_path / "missing" / "file", QUESTION)
    assert bad.exists()
    assert link.is_symlink()


def test_other_models_refuse_a_session(written, folder, tmp_path):
    file = folder / "session-story.safetensors"
    with dflash.load("demo", **(SETTINGS | {"kv": "f32", "prefix_cache": 1 << 20})) as other:
        with pytest.raises(RequestError, match="needs a folder"):
            other.load_session("story")
        with pytest.raises(FormatError, match="at most"):
            other.load_session(file)
        with pytest.raises(RequestError, match="holds no state for this prompt"):
            other.save_session(tmp_path / "file", QUESTION)
        other.prefix_cache.capacity = other.prefix_cache.max_copied = 64 << 20
        with pytest.raises(RequestError, match=r"was saved with .*kv f16"):
            other.load_session(file)
    with (
        dflash.load("demo", **(SETTINGS | {"prefix_cache": False})) as none,
        pytest.raises(RequestError, match="without a pref"),
    ):
        none.save_session(file, QUESTION)


def test_options_that_do_not_fit_together(tmp_path, capsys):
    with pytest.raises(RequestError, match="prefix_cache=True"):
        dflash.load("demo", device="cpu", prefix_cache_folder=tmp_path)
    with pytest.raises(RequestError, match="needs prefix_cache_folder"):
        dflash.load("demo", device="cpu", prefix_cache=True, prefix_cache_disk=5)
    with pytest.raises(RequestError, match=r"prefix_cache_disk: .* got -1"):
        dflash.load("demo", prefix_cache_folder=tmp_path, prefix_cache_disk=-1, **SETTINGS)
    assert main(["serve", "--device", "cpu", "--prefix-cache-disk-mib", "-1"]) == 1
    assert "--prefix-cache-disk-mib: must be at least 0" in capsys.readouterr().err
