"""Kernels that are compiled in other processes before a model's first forward."""

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hang_guard import GUARD
from python_run import run_python

from dflash.decode.warmup import compile_ahead as module
from dflash.decode.warmup.compile_ahead import CompileAhead, compile_ahead
from dflash.kernels import compiling
from dflash.kernels.compiling import Progress
from dflash.kernels.cpu import warm_marker
from dflash.kernels.cpu.dry_run import Job, dry_run, grouped
from dflash.kernels.cpu.jit import CACHE, inline
from dflash.model.loading.hub import resolve
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model
from dflash.model.network.blocks import FEED_FORWARDS

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
KINDS = ("demo", "gemma4-tiny-Q8_0", "laguna-tiny-Q8_0", "qwen35moe-r2-F16", "qwen3-dense-Q4_0")
COMPILED = """
import gc, sys
from dflash.kernels.cpu.cache import KernelCache
from numba.core.ccallback import CFunc
from numba.core.dispatcher import Dispatcher

def name(function, types):
    cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
    return f"{function.__module__}.{function.__qualname__} {types} {cells}"

def print_compiled():
    for each in gc.get_objects():
        if isinstance(each, Dispatcher) and isinstance(each._cache, KernelCache):
            print(*(name(each.py_func, types) for types in each.overloads), sep="\\n")
        if isinstance(each, CFunc):
            print(name(each.__wrapped__, each._sig.args))
"""
PLANNED = f"""{COMPILED}
from dflash.decode.warmup import decoding_jobs
from dflash.decode.warmup.compile_worker import jobs_of

for path in sys.argv[1:]:
    first, others = jobs_of(path, kv="f16", pending=64, threads=2)
    print(*(job.name for job in first + others), sep="\\n")
    print(*("first " + job.name for job in first), sep="\\n")
for job in decoding_jobs():
    job.compile()
print_compiled()
"""
USED = f"""{COMPILED}
import dflash
import dflash.decode.warmup.compile_ahead as ahead
import threading
from dflash.kernels.cpu import warm_marker

ahead.n_cores, warm_marker.is_known = lambda: 1, lambda kind: False
loaded, all_compiled = [], sys.argv[1] == "all"
if not all_compiled:
    ahead.CompileAhead.__init__ = lambda self: setattr(self, "finished", threading.Event())
for path in sys.argv[2:]:
    with dflash.load(path, device="cpu", context=2048, sequences=1, threads=2, isolate=False) as lm:
        for n in () if all_compiled else (1, 600):
            lm.generate([0] * n, max_tokens=4, temperature=0, ignore_eos=True)
print_compiled()
"""


def lines_of(script, *paths):
    return set(filter(None, run_python("-c", script, *paths).stdout.splitlines()))


def test_a_dry_run_names_every_kernel_that_a_start_uses():
    """Dense and expert models, delta rules, and layers that differ: a start compiles nothing after the dry run's kernels."""
    paths = [str(resolve("demo") if kind == "demo" else next(GOLDEN.glob(f"*/{kind}.gguf"))) for kind in KINDS]
    planned, used = lines_of(PLANNED, *paths), lines_of(USED, "all", *paths)
    assert len(used) > 60
    assert not used - planned
    first = {name.removeprefix("first ") for name in planned if name.startswith("first ")}
    of_tokens = {name for name in lines_of(USED, "first", *paths) if "sample" not in name}
    assert 30 < len(of_tokens) <= len(used) - 4
    assert not of_tokens - first


def test_a_dry_run_compiles_and_runs_nothing():
    def fail(x):
        return x + 1

    function = inline(fail)
    with dry_run() as jobs:
        assert function(1) == 1
        assert function(1.5) == 1
    assert len(jobs) == 2
    assert not function.signatures
    assert function(1) == 2


def test_kernels_with_the_same_parts_are_one_group():
    a, b, c = {"a": 100, "shared": 900}, {"b": 50, "shared": 900}, {"c": 2000}
    groups = grouped([Job("x", a, list), Job("y", b, list), Job("z", c, list)])
    assert [[job.name for job, _ in group] for group in groups] == [["z"], ["x", "y"]]
    assert sum(work for group in groups for _, work in group) < 3 * 300 + 100 + 50 + 2000 + 2 * 900


@pytest.fixture
def model(monkeypatch):
    """Return what `compile_ahead` is given for the demo, on a machine that has not seen it."""
    given, known = [], set()
    monkeypatch.setattr(warm_marker, "is_known", known.__contains__)
    monkeypatch.setattr(warm_marker, "remember", known.add)
    monkeypatch.setattr(module, "n_cores", lambda: 2)
    load_model(
        "demo", LoadSettings(device="cpu", threads=1, context=64, sequences=1), before_kernels=given.append
    ).file.close()
    return given[0], known


def test_processes_compile_what_is_missing_and_are_not_started_again(model, monkeypatch, tmp_path):
    """In a cache that lacks one kernel, that one is compiled, and the second process finds nothing to do."""
    settings, known = model
    compile_ahead(settings)
    copied = tmp_path / "dflash" / CACHE.folder.name
    shutil.copytree(CACHE.used_folder, copied)
    for path in (*copied.glob("log_sum_exp-*"), *copied.glob("known-*")):
        path.unlink()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    known.clear()
    before = compiling.count()
    compile_ahead(settings)
    after = compiling.count()
    assert (after.done - before.done, after.waiting) == (1, before.waiting)
    assert list(copied.glob("log_sum_exp-*"))
    assert len(list(copied.glob("known-*"))) == 1, "recorded by the last process"
    known.update([name.removeprefix("first tokens of ") for name in known])
    assert len(known) == 2
    monkeypatch.setattr(module.subprocess, "Popen", None)
    compile_ahead(settings)


def test_a_package_of_the_same_name_in_the_current_folder_plays_no_part(model, monkeypatch, tmp_path, caplog):
    """A checkout of another version, for instance."""
    settings, known = model
    (tmp_path / "dflash").mkdir()
    (tmp_path / "dflash" / "__init__.py").write_text("raise SystemExit('another dflash')")
    monkeypatch.chdir(tmp_path)
    compile_ahead(settings)
    assert known
    assert not caplog.records


def test_the_processes_import_what_defines_new_parts(model, monkeypatch, tmp_path):
    """A format or an architecture of a plugin; otherwise they could not open a file that has it."""
    settings, known = model
    (tmp_path / "new_part.py").write_text("from pathlib import Path\nPath(__file__).with_suffix('.seen').touch()")

    def feed_forward(net, names, config, x): ...

    feed_forward.__module__ = "new_part"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(FEED_FORWARDS, "ffn_new.weight", feed_forward)
    compile_ahead(settings)
    assert known
    assert (tmp_path / "new_part.seen").exists()


def test_nobody_waits_for_more_than_the_kernels_of_the_first_tokens(model, monkeypatch):
    """The others are compiled beside the model, at a later start if need be."""
    settings, known = model
    given, released = [], threading.Event()

    def run(self, settings, progress):
        given.append(settings)
        self._first.set()
        assert released.wait(GUARD)

    monkeypatch.setattr(CompileAhead, "_run", run)
    for _ in range(2):
        with CompileAhead() as ahead:
            ahead.begin(settings)
        assert not ahead.finished.is_set()
        known.add(f"first tokens of {given[0]['kind']}")
    released.set()
    assert ahead.finished.wait(GUARD)


def test_a_process_goes_on_when_nobody_reads_what_it_says(model, tmp_path):
    """The program that began it may end first."""
    settings, _ = model
    compile_ahead(settings)
    copied, claims = tmp_path / "dflash" / CACHE.folder.name, tmp_path / "claims"
    shutil.copytree(CACHE.used_folder, copied, ignore=shutil.ignore_patterns("known-*", "log_sum_exp-*"))
    claims.mkdir()
    given = {"path": str(settings.file.path), "kv": "f16", "pending": 64, "threads": 1}
    given |= {"claims": str(claims), "processes": 1, "kind": "a kind"}
    command = [sys.executable, "-m", "dflash.decode.warmup.compile_worker", json.dumps(given)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}) as process:
        process.stdout.close()
        process.wait(GUARD)
    assert list(copied.glob("log_sum_exp-*"))
    assert list(copied.glob("known-*"))
    assert not claims.exists()


@pytest.mark.parametrize(
    ("executable", "want"),
    [("/no/such/python", "No such file"), (sys.executable, "No module named 'dflash'")],
    ids=["no program", "an error"],
)
def test_a_process_that_fails_costs_one_line_and_nothing_else(model, monkeypatch, caplog, executable, want):
    settings, known = model
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(module, "__file__", "/nowhere/dflash/decode/warmup/compile_ahead.py")
    monkeypatch.chdir("/")
    monkeypatch.setattr(sys, "path", [])
    if executable != "/no/such/python":
        monkeypatch.setattr(sys, "executable", sys._base_executable)
    before = compiling.count()
    with caplog.at_level(logging.WARNING):
        compile_ahead(settings)
    assert want in caplog.text
    assert len(caplog.records) == 1
    assert compiling.count() == before
    assert not known


def test_an_interrupt_ends_the_processes_and_leaves_nothing(model, monkeypatch, tmp_path):
    """Otherwise the interpreter would wait for them before it ends; the thread that reads them may not come to its end."""
    started, named, released = [], threading.Event(), threading.Event()

    class Named(module.Progress):
        def expect(self, *given):
            named.set()

        def __exit__(self, *error):
            assert released.wait(GUARD)
            super().__exit__(*error)

    class Interrupted(threading.Event):
        def wait(self, timeout=None):
            assert named.wait(GUARD)
            raise KeyboardInterrupt

    class Process(subprocess.Popen):
        def __init__(self, *args, **settings):
            super().__init__(*args, **settings)
            started.append(self)

    monkeypatch.setattr(module, "Progress", Named)
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(module.subprocess, "Popen", Process)
    with pytest.raises(KeyboardInterrupt), CompileAhead() as ahead:
        ahead._first = Interrupted()
        ahead.begin(model[0])
    assert not list(tmp_path.glob("dflash-*"))
    released.set()
    assert ahead.finished.wait(GUARD)
    for process in started:
        assert process.wait(GUARD) != 0


def test_a_machine_with_one_core_starts_no_process(model, monkeypatch):
    monkeypatch.setattr(module, "n_cores", lambda: 1)
    monkeypatch.setattr(module.subprocess, "Popen", None)
    compile_ahead(model[0])


def test_kernels_of_processes_are_counted_once_however_many_name_them():
    before = compiling.count()
    with Progress() as progress:
        progress.expect([10, 30])
        progress.expect([10, 30])
        progress.finish(1, 1)
        now = compiling.count()
        assert (now.done - before.done, now.waiting - before.waiting) == (1, 1)
        assert now.done_size - before.done_size == pytest.approx(1.5)
        progress.finish(0, 0)
        assert progress.is_done
        progress.finish(3, 1)
        progress.expect([10, 30], 2)
        assert compiling.count()[:2] == (now.done + 1, before.waiting + 1), "the cache had one, one came early"
    assert compiling.count().waiting == before.waiting
