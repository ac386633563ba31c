"""Comparison of two checkouts by `benchmarks/identity.py`."""

import runpy
from pathlib import Path

import pytest
from python_run import run_python

import dflash
from dflash.decode.registry import words, words_of

ROOT = Path(dflash.__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "identity.py"
SMALL = "qwen3-dense-Q4_0 | random 5 | "

SAME = f"""
from pathlib import Path
__path__ = [{str(ROOT / "dflash")!r}]
exec(Path(__path__[0], "__init__.py").read_text())
"""
"""A checkout with the code of this one."""

CHANGED = f"""{SAME}
import numpy
from dflash.lm import LM

logits = LM.logits
LM.logits = lambda lm, tokens: numpy.nextafter(logits(lm, tokens), numpy.float32(numpy.inf))
"""
"""A checkout whose logits differ in the last bit, and nothing else."""

STARTS = f"""{SAME}
import subprocess, sys

found = "import importlib.util; print(importlib.util.find_spec('dflash').origin)"
assert Path(subprocess.check_output([sys.executable, "-c", found], text=True).strip()).samefile(__file__)
"""
"""A checkout that starts a process and fails if that finds another package."""


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


def compared(folder, only, package=""):
    if package:
        (folder / "dflash").mkdir()
        (folder / "dflash" / "__init__.py").write_text(package)
    return run_python(SCRIPT, "--against", folder, "--tokens", "3", "--only", only, check=False, cwd=ROOT)


def test_a_changed_bit_is_found(tmp_path):
    done = compared(tmp_path, SMALL, CHANGED)
    assert done.returncode == 1, done.stdout + done.stderr
    found, total = done.stdout.splitlines()
    assert found.startswith(f"{SMALL}logits: ")
    assert total.endswith(" rows, 1 differ")
    assert int(total.split()[0]) > 40


def test_processes_of_a_checkout_find_its_own_package(tmp_path):
    done = compared(tmp_path, "nothing", STARTS)
    assert (done.returncode, done.stdout) == (0, "0 rows, 0 differ\n"), done.stdout + done.stderr


def test_a_folder_that_is_no_checkout(tmp_path):
    done = compared(tmp_path, "nothing")
    assert done.returncode == 125
    assert f"{tmp_path}: could not be run" in done.stdout


def test_rows_are_compared_by_label(script):
    one, other = ["a: 1", "b | c: 2", "d: 3"], ["d: 3", "b | c: 4", "e: 5"]
    assert script["differences"](one, one[::-1]) == []
    assert script["differences"](one, other) == ["a: 1, other no row", "b | c: 2, other 4", "e: no row, other 5"]


def test_every_registered_name_is_compared(script):
    names = [name for part in ("PLAIN", "MTP", "DRAFTS", "OWN_DRAFT", "EAGLE") for name in script[part]]
    assert set(words()) <= {word for name in names for word in words_of(name)}
