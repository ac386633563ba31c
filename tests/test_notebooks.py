"""Notebooks run from top to bottom, and are committed as executed."""

import importlib.util
import json
from functools import partial
from pathlib import Path

import matplotlib
import pytest

import dflash

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NEEDS = {"06-train-a-draft": "torch"}
"""Notebooks that need a package beyond those of the tests."""
SMALLER = {
    "02-swap-strategies": {"max_tokens=64": "max_tokens=24", "max_tokens=32": "max_tokens=12", "[3:6]": "[3:4]"},
    "03-write-a-drafter": {"max_tokens=64": "max_tokens=24", "max_tokens=48": "max_tokens=16", "[:3]": "[:1]"},
    "07-agents": {"synthetic(8)": "synthetic(2)"},
    "08-a-study": {"seeds=2": "seeds=1", "max_tokens=32": "max_tokens=8", "[:4]": "[:1]"},
    "09-verifiers": {"seeds=2": "seeds=1", "max_tokens=32": "max_tokens=8", "400": "40", "[:4]": "[:1]"},
    "10-draft-doctor": {"max_tokens=48": "max_tokens=12", "[:3]": "[:1]", "[:2]": "[:1]"},
}
"""Numbers of samples and what they become here: what a notebook shows needs more of them than a test that its code runs."""


def cells(path, kind):
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_code_runs(path, monkeypatch, capsys):
    if path.stem in NEEDS and importlib.util.find_spec(NEEDS[path.stem]) is None:
        pytest.skip(f"{NEEDS[path.stem]} isn't installed")
    code = "\n\n".join("".join(cell["source"]) for cell in cells(path, "code"))
    for number, smaller in SMALLER.get(path.stem, {}).items():
        assert number in code
        code = code.replace(number, smaller)
    matplotlib.use("agg")
    monkeypatch.chdir(FOLDER)
    monkeypatch.setattr(dflash, "load", partial(dflash.load, threads=1))
    exec(compile(code, str(path), "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_as_it_ran(path):
    code = cells(path, "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert outputs
    assert not any(output["output_type"] == "error" or output.get("name") == "stderr" for output in outputs)
    assert cells(path, "markdown")[0]["source"][0].startswith("# ")
    assert max(len(cell["source"]) for cell in code) <= 15


def test_together_they_are_small():
    assert len(NOTEBOOKS) == 10
    assert sum(path.stat().st_size for path in NOTEBOOKS) <= 480_000
