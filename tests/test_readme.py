"""Examples and claims of the README."""

import contextlib
import io
import re
from pathlib import Path

import pytest

import dflash

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture
def text():
    return README.read_text(encoding="utf-8")


def test_it_is_short(text):
    assert len(text.splitlines()) <= 150


def test_its_python_runs(text, lm, monkeypatch):
    monkeypatch.setattr(dflash, "load", lambda name: lm)
    names = {}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        assert len([line for line in code.splitlines() if line]) <= 8
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, str(README), "exec"), names)
        assert out.getvalue()


def test_its_folders_are_there(text):
    package = Path(dflash.__file__).parent
    for folder in re.findall(r"^  (\w+)/ ", text, re.MULTILINE):
        assert (package / folder).is_dir()
