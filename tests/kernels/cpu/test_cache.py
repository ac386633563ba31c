"""Numba kernels in the cache: if an entry can't be loaded or stored, the function still works and the log has one line."""

import errno
import os
import pickle
import tempfile

import numba
import numpy as np
import pytest
from numba.core import caching, compiler, types

from dflash.kernels.compile_cache.cache import CodeCache
from dflash.kernels.cpu import cache as numba_cache
from dflash.kernels.cpu import jit, parts
from dflash.kernels.cpu.jit import inline, kernel


def triple(x):
    return 3 * x


def entry_of(folder):
    [path] = folder.iterdir()
    return path


class Caches:
    """Creates functions as a newly started process would."""

    def __init__(self, folder, monkeypatch):
        self.folder, self._monkeypatch = folder, monkeypatch

    def start(self, declare=inline, function=triple):
        self._monkeypatch.setattr(jit, "CACHE", CodeCache(self.folder))
        return declare(function)


@pytest.fixture
def caches(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return Caches(tmp_path / "numba-0", monkeypatch)


def compiled_anew(function):
    return sum(function.stats.cache_misses.values())


@pytest.fixture
def warm(caches):
    """Return a cache that holds `triple` for integers."""
    assert caches.start()(2) == 6
    return caches


def test_is_compiled_once_for_each_signature(warm, caplog):
    again = warm.start()
    assert (again(2), again(2.5)) == (6, 7.5)
    assert compiled_anew(again) == 1
    again = warm.start()
    assert (again(2), again(2.5)) == (6, 7.5)
    assert compiled_anew(again) == 0
    assert len(list(warm.folder.iterdir())) == 2
    assert not caplog.records


def test_code_with_addresses_of_its_process_is_not_stored(caches, caplog):
    def fill(out):
        for i in numba.prange(numba.get_num_threads()):
            out[i] = i + 1

    out = np.zeros(64, np.int64)
    caches.start(kernel, fill)(out)
    assert out[0] == 1
    assert not caches.folder.exists()
    [record] = caplog.records
    assert "fill is compiled anew in every process" in record.getMessage()


def test_a_kernel_on_all_threads(caches):
    def fill(out):
        for i in numba.prange(len(out)):
            out[i] = i

    for misses in (1, 0):
        out = np.full(100, 255, np.uint8)
        function = caches.start(kernel, fill)
        function(out)
        assert out.tolist() == list(range(100))
        assert compiled_anew(function) == misses


def test_functions_that_differ_in_what_they_enclose(caches):
    def times(factor):
        def multiply(x):
            return factor * x

        return multiply

    for misses in (1, 0):
        for factor in (2, 5):
            function = caches.start(inline, times(factor))
            assert function(3) == 3 * factor
            assert compiled_anew(function) == misses


def test_a_function_that_is_in_no_file(caches, caplog):
    scope = {}
    exec("def double(x):\n    return 2 * x", scope)
    for _ in range(2):
        assert caches.start(inline, scope["double"])(4) == 8
    assert not caches.folder.exists()
    assert not caplog.records


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:-1] + b"x"])
def test_a_damaged_file(warm, caplog, damage):
    path = entry_of(warm.folder)
    path.write_bytes(damage(path.read_bytes()))
    self_healing(warm, caplog)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x80", pickle.dumps(None), pickle.dumps((1, 2, 3)), pickle.dumps(((types.int64,), (b"no code",) * 9))],
    ids=["empty", "no pickle", "None", "no pair", "no code"],
)
def test_a_good_checksum_over_what_is_no_code(warm, caplog, content):
    CodeCache(warm.folder).put(entry_of(warm.folder).name, content)
    self_healing(warm, caplog)


def self_healing(caches, caplog):
    """A damaged entry is recompiled with one line in the log, and replaced by a good one."""
    function = caches.start()
    assert function(7) == 21
    assert compiled_anew(function) == 1
    assert len(caplog.records) == 1
    assert str(caches.folder) in caplog.text
    function = caches.start()
    assert function(7) == 21
    assert compiled_anew(function) == 0
    assert len(caplog.records) == 1


def test_code_of_another_signature_is_not_taken(warm):
    other = warm.start()
    other(2.5)
    names = sorted(warm.folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    cache = CodeCache(warm.folder)
    cache.put(names[0].name, cache.get(names[1].name))
    function = warm.start()
    assert function(2) == 6
    assert isinstance(function(2), int)


class _Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no user ids")
@pytest.mark.parametrize("trap", ["folder for all", "file for all", "no checksum"])
def test_nothing_of_another_user_is_unpickled(warm, tmp_path, caplog, trap):
    path, exploded = entry_of(warm.folder), tmp_path / "exploded"
    bomb = pickle.dumps(_Bomb(str(exploded)))
    if trap == "no checksum":
        path.write_bytes(bomb)
    else:
        CodeCache(warm.folder).put(path.name, bomb)
        (path if trap == "file for all" else warm.folder).chmod(0o777)
    function = warm.start()
    assert function(7) == 21
    assert not exploded.exists()
    assert len(caplog.records) == 1


def test_the_bomb_of_the_test_above_goes_off(warm, tmp_path):
    CodeCache(warm.folder).put(entry_of(warm.folder).name, pickle.dumps(_Bomb(str(tmp_path / "exploded"))))
    warm.start()(7)
    assert (tmp_path / "exploded").exists()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.ENOENT, errno.EACCES])
def test_what_can_not_be_kept_is_used(caches, caplog, monkeypatch, error):
    def refuse(**_):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    function = caches.start()
    assert (function(2), function(2.5)) == (6, 7.5)
    assert len(caplog.records) == 1
    assert "compiled anew in every process" in caplog.text


@pytest.mark.parametrize("what", ["_reduce", "_rebuild"])
def test_a_numba_that_raises_something_else(warm, caplog, monkeypatch, what):
    def fail(*_):
        raise ZeroDivisionError("other internals")

    numba_cache._warn_once.cache_clear()
    monkeypatch.setattr(compiler.CompileResult, what, fail)
    function = warm.start()
    assert (function(2), function(2.5)) == (6, 7.5)
    assert len(caplog.records) == 1
    assert "other internals" in caplog.text


def test_a_function_may_be_compiled_again(warm):
    function = warm.start()
    assert function(2) == 6
    function.recompile()
    assert function(2) == 6
    assert compiled_anew(function) == 1


def test_this_numba_has_what_is_used():
    assert numba_cache.lacking() == parts.lacking() == []
    assert jit._templates_are_read()


@pytest.fixture
def asked_again():
    """Repeat the check of numba in the test and after it."""
    checks = jit._lacking, jit._templates_are_read
    for check in checks:
        check.cache_clear()
    yield
    for check in checks:
        check.cache_clear()


@pytest.mark.parametrize("lacking", ["an attribute", "a method", "a part"])
def test_a_numba_without_what_is_used(caches, caplog, monkeypatch, asked_again, lacking):
    if lacking == "an attribute":
        monkeypatch.delattr(compiler.CompileResult, "_reduce")
    elif lacking == "a method":
        monkeypatch.setattr(caching._Cache, "__abstractmethods__", caching._Cache.__abstractmethods__ | {"restore"})
    else:
        monkeypatch.setattr(caching, "NullCache", int)
    for _ in range(2):
        assert caches.start()(2) == 6
    assert not caches.folder.exists()
    assert len(caplog.records) == 1
    assert f"numba {numba.__version__} lacks" in caplog.text


def test_a_numba_that_does_not_ask_for_the_template(caches, caplog, monkeypatch, asked_again):
    monkeypatch.setattr(types.Dispatcher, "get_call_type", lambda *_: None)
    for _ in range(2):
        assert caches.start().get_call_template.__func__ is not None
    assert len(caplog.records) == 1
    assert "get_call_template can't be replaced" in caplog.text
