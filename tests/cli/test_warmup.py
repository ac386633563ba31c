"""The command that compiles kernels, and what it says."""

import contextlib
import io

import pytest

from dflash.__main__ import main
from dflash.cli import warmup
from dflash.generation import progress
from dflash.kernels import compiling
from dflash.kernels.cpu.jit import CACHE


def test_it_says_what_was_compiled_and_where_it_is(capsys, monkeypatch):
    assert main(["warmup", "demo", "--device", "cpu", "--context", "256", "--strategy", "lookup:3"]) == 0
    assert str(CACHE.used_folder) in capsys.readouterr().out
    assert main(["warmup", "--device", "cpu", "--context", "256", "--strategy", "lookup:3"]) == 0
    assert capsys.readouterr().out == f"demo on the CPU: nothing to compile; the cache of kernels is {CACHE.used_folder}\n"

    load = warmup.common.load

    def load_and_compile(*args, **settings):
        with compiling.compiling():
            return load(*args, **settings)

    monkeypatch.setattr(warmup.common, "load", load_and_compile)
    assert main(["warmup", "--device", "cpu", "--context", "256"]) == 0
    out, errors = capsys.readouterr()
    assert out.startswith("demo on the CPU: 1 kernel compiled in ")
    assert "Traceback" not in errors


@pytest.mark.parametrize("command", [["run", "demo", "hi", "-n", "1"], ["warmup"], ["chat"]])
def test_a_line_is_shown_while_a_strategy_is_prepared(monkeypatch, command):
    shown = []

    @contextlib.contextmanager
    def line(name, **_):
        stages = []
        yield stages.append
        shown.append((name, stages))

    monkeypatch.setattr(progress, "progress_line", line)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main([*command, "--device", "cpu", "--context", "256", "--strategy", "lookup:3"]) == 0
    (model, stages), (strategy, prepared) = shown
    assert model == "demo"
    assert "kernels" in stages
    assert "lookup" in strategy.lower()
    assert prepared == ["draft model"]


@pytest.mark.parametrize("words", [["nosuch.gguf"], ["demo", "--strategy", "nosuch"]])
def test_an_error_is_one_sentence(capsys, words):
    assert main(["warmup", *words]) == 1
    assert capsys.readouterr().err.startswith("dflash: ")


def test_the_folder_is_the_one_that_holds_code(tmp_path, monkeypatch):
    from dflash.kernels.compile_cache import cache as compile_cache

    monkeypatch.setattr(compile_cache, "spare_folder", lambda name: tmp_path / "spare" / name)
    cache = compile_cache.CodeCache(tmp_path / "own")
    assert cache.used_folder == tmp_path / "own"
    (tmp_path / "spare" / "own").mkdir(parents=True)
    assert cache.used_folder == tmp_path / "spare" / "own"
    (tmp_path / "own").mkdir()
    assert cache.used_folder == tmp_path / "own"
