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

CHANGED = f"""
from pathlib import Path
__path__ = [{str(ROOT / "dflash")!r}]
exec(Path(__path__[0], "__init__.py").read_text())

import numpy
from dflash.lm import LM

logits = LM.logits
LM.logits = lambda lm, tokens: numpy.nextafter(logits(lm, tokens), numpy.float32(numpy.inf))
"""
"""A checkout whose logits differ in the last bit, and nothing else."""


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


def compared(folder, only):
    return run_python(SCRIPT, "--against", folder, "--tokens", "3", "--only", only, check=False)


def test_a_changed_bit_is_found(tmp_path):
    (tmp_path / "dflash").mkdir()
    (tmp_path / "dflash" / "__init__.py").write_text(CHANGED)
    done = compared(tmp_path, SMALL)
    assert done.returncode == 1, done.stdout + done.stderr
    found, total = done.stdout.splitlines()
    assert found.startswith(f"{SMALL}logits: ")
    assert total.endswith(" rows, 1 differ")
    assert int(total.split()[0]) > 40


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
