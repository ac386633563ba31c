"""The cache of compiled kernels, used by whole processes in all its states."""

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest
from hang_guard import GUARD
from long_form import LONG
from python_run import run_python

import dflash

ROOT = Path(dflash.__file__).parent
CALL = "import tiny; print(tiny.scale(3.0), sum(tiny.scale.stats.cache_hits.values()))"
TINY = """
from dflash.kernels.cpu.jit import inline

@inline
def scale(x):
    return 2.0 * x
"""
KINDS = "Q4_K", "Q2_K", "Q3_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ4_NL", "MXFP4", "Q8_0", "Q4_0", "F16", "Q4_1"
"""Types of weights; every other one is of another kind of decoder. DFLASH_LONG=1 compiles all for both processors."""

VARIABLES = {"NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "TMPDIR", "PYTHONPATH"}


@pytest.fixture
def start(tmp_path):
    """Start a process with a module `tiny` that has a kernel; its cache is in the test's folder."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "tiny.py").write_text(TINY)
    (tmp_path / "tmp").mkdir()
    with contextlib.ExitStack() as stack:

        def start(script=CALL, package=ROOT.parent, **environment):
            clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
            clean |= {
                "XDG_CACHE_HOME": str(tmp_path / "cache"),
                "TMPDIR": str(tmp_path / "tmp"),
                "PYTHONPATH": os.pathsep.join(map(str, (tmp_path / "modules", package))),
            }
            child = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", script],
                    env=clean | environment,
                    cwd=tmp_path / "modules",
                    text=True,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )
            stack.callback(child.kill)
            return child

        yield start


def ended(child):
    """Return the output and the log of a process."""
    out, log = child.communicate(timeout=GUARD)
    assert child.returncode == 0, log
    return out.strip(), log


def entries(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_the_users_cache(tmp_path, start):
    assert ended(start()) == ("6.0 0", "")
    assert ended(start()) == ("6.0 1", "")
    [folder] = (tmp_path / "cache" / "dflash").iterdir()
    assert folder.name.startswith("numba-")
    assert [name[:6] for name in entries(folder)] == ["scale-"]
    assert not list((tmp_path / "tmp").iterdir())


def test_another_folder_may_be_named(tmp_path, start):
    named = {"NUMBA_CACHE_DIR": str(tmp_path / "named")}
    assert ended(start(**named)) == ("6.0 0", "")
    assert ended(start(**named)) == ("6.0 1", "")
    [folder] = (tmp_path / "named" / "dflash").iterdir()
    assert folder.name.startswith("numba-")
    assert not (tmp_path / "cache").exists()


def test_old_folders_are_forgotten(tmp_path, start):
    old, young = tmp_path / "cache" / "dflash" / "numba-old", tmp_path / "cache" / "dflash" / "numba-young"
    for path in (old, young):
        path.mkdir(parents=True)
    os.utime(old, (time.time() - 40 * 86400,) * 2)
    ended(start())
    assert not old.exists()
    assert young.exists()


def test_a_cache_that_cannot_be_written_to(tmp_path, start):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "dflash").write_text("a file where the folder should be")
    out, log = ended(start())
    assert out == "6.0 0"
    assert log.count("is kept in") == len(log.splitlines()) == 1
    assert ended(start()) == ("6.0 1", ""), "kept in the folder for temporary files"


NEIGHBOUR = """
from dflash.kernels.cpu.jit import inline

FACTOR = {0}

@inline
def called():
    return {1}

def generated():
    return inline(eval("lambda: {2}"))

class Settings:
    offset = {3}
"""
CALLER = """
from dflash.kernels.cpu.jit import inline
from dflash.kernels.neighbour import FACTOR, Settings, called, generated

_generated, _OFFSET = generated(), Settings.offset

@inline
def scale(x):
    return ((x * FACTOR + called()) * 10 + _generated()) * 10 + _OFFSET
"""
OTHER = "from dflash.kernels.cpu.jit import inline\n\n@inline\ndef same(x):\n    return x\n"


def test_stale_code_is_never_run(tmp_path, start):
    """Another file of the package changes, as in an update; the kernel's own file does not."""
    package = tmp_path / "package"
    shutil.copytree(ROOT, package / "dflash", ignore=shutil.ignore_patterns("data", "__pycache__", "serve", "*.cu*"))
    kernels = package / "dflash" / "kernels"
    (kernels / "caller.py").write_text(CALLER)
    (kernels / "other.py").write_text(OTHER)
    script = """
from dflash.kernels.cpu import warm_marker as compiled
from dflash.kernels.caller import scale
from dflash.kernels.other import same
hits = lambda function: sum(function.stats.cache_hits.values())
print(scale(1), same(7), compiled.is_known("demo"), hits(scale), hits(same))
compiled.remember("demo")
"""
    values, results = [1, 2, 3, 4], []
    for changed in (None, None, 0, 1, 2, 3):
        if changed is not None:
            values[changed] += 20  # of another length: Python tells its own caches apart by size and second
        (kernels / "neighbour.py").write_text(NEIGHBOUR.format(*values))
        results.append(ended(start(script, package, NUMBA_CACHE_DIR=str(tmp_path / "named")))[0])
    assert results == [
        "334 7 False 0 0",
        "334 7 True 1 1",
        "2334 7 False 0 1",
        "4334 7 False 0 1",
        "4534 7 False 0 1",
        "4554 7 False 0 1",
    ]
    assert len(list((tmp_path / "named" / "dflash").iterdir())) == 1


def test_two_cold_starts_at_once(tmp_path, start):
    """Two processes import, then compile at the same time, and find the same old folders to remove."""
    base = tmp_path / "cache" / "dflash"
    for number in range(20):
        (base / f"numba-{number}").mkdir(parents=True)
        (base / f"numba-{number}" / "file").touch()
        os.utime(base / f"numba-{number}" / "file", (time.time() - number * 7 * 86400,) * 2)
    children = [start(f"import tiny; print('ready', flush=True); input(); {CALL}") for _ in range(2)]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    for child in children:
        out, log = ended(child)
        assert out.startswith("6.0 ")
        assert log == ""
    assert ended(start()) == ("6.0 1", "")
    assert sorted(name[:6] for name in entries(base)) == ["file"] * 5 + ["scale-"]
    assert len(list(base.iterdir())) == 6


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no signal that can't be caught")
def test_a_start_after_one_that_was_killed(tmp_path, start):
    """The process is killed when half of the first file is written."""
    killed = start(f"import os, time; os.fsync = lambda _: (print('half', flush=True), time.sleep(600)); {CALL}")
    assert killed.stdout.readline() == "half\n"
    killed.send_signal(signal.SIGKILL)
    killed.wait(GUARD)
    assert [name[:4] for name in entries(tmp_path / "cache")] == ["new-"]
    assert ended(start()) == ("6.0 0", "")
    assert ended(start()) == ("6.0 1", "")


@pytest.mark.skipif(platform.machine() not in {"x86_64", "AMD64"}, reason="compiles for another x86 processor")
@pytest.mark.parametrize(
    ("name", "more", "kinds"),
    [("haswell", ",+avx2,+fma,+bmi,+bmi2", KINDS), ("ivybridge", "", KINDS if LONG else KINDS[::2])],
    ids=["AVX2", "AVX"],
)
def test_other_processors_give_the_same_bits(tmp_path, name, more, kinds):
    """The packed multiply works when compiled for a processor without 512-bit vectors; each kind of decoder is tested."""
    other = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": f"+sse4.2,+avx,+f16c{more}", "NUMBA_CACHE_DIR": str(tmp_path)}
    assert digest_of_multiplies(kinds, **other) == digest_of_multiplies(kinds)


@cache
def digest_of_multiplies(kinds, **environment):
    script = """
import hashlib, sys, numpy as np
from matrices import random_matrix
from dflash.kernels.linear import linear
digest = hashlib.sha256()
for kind in sys.argv[1:]:
    weight = random_matrix(20, 768, kind)
    x = np.random.default_rng(0).standard_normal((20, 768)).astype(np.float32)
    for tokens in (1, 2, 3, 5, 20):
        out = np.empty((tokens, 20), np.float32)
        linear(x[:tokens], [weight], [out])
        digest.update(out.tobytes())
print(digest.hexdigest())
"""
    return run_python("-c", script, *kinds, env={"PYTHONPATH": os.pathsep.join(sys.path)} | environment).stdout
