"""Name of the distribution, and install commands in messages and docs."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
from generations import generation
from packaging.requirements import Requirement
from python_run import run_python

import dflash
from dflash import distribution
from dflash.errors import DFlashError, RequestError

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SOURCES = sorted([*(ROOT / "dflash").rglob("*.py"), *(ROOT / "examples").rglob("*.py")])
REQUIREMENT = re.compile(r"(?<![\w-])(dflash[\w-]*)\[([a-z0-9,]+)\]")


def test_the_name_is_that_of_the_project():
    assert PROJECT["name"] == distribution.NAME
    assert distribution.release() == dflash.__version__ == PROJECT["version"]


def test_the_changelog_is_short_and_knows_the_version():
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 160
    assert any(line.startswith(f"## {PROJECT['version']} ") for line in lines)


def test_extras_refer_to_themselves():
    own = [each for group in EXTRAS.values() for each in map(Requirement, group) if each.name.startswith("dflash")]
    assert own
    assert {each.name for each in own} == {distribution.NAME}
    assert set().union(*(each.extras for each in own)) <= EXTRAS.keys()


def names(text):
    """Wrong names and unknown extras in a text, and names after ``pip install`` that belong to another package."""
    wrong = [f"{name}[{extras}]" for name, extras in REQUIREMENT.findall(text) if name != distribution.NAME]
    unknown = [extra for _, extras in REQUIREMENT.findall(text) for extra in extras.split(",") if extra not in EXTRAS]
    return wrong + unknown + re.findall(r"pip install [^`\n]*?\bdflash(?![\w-])", text)


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS, *SOURCES], ids=lambda path: str(path.relative_to(ROOT)))
def test_texts_name_the_distribution_and_its_extras(path):
    assert names(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text", ["pip install dflash", "pip install 'dflash[serve]'", "`dflash[ray]`", "pip install -U dflash", "dflash-gguf[x]"]
)
def test_a_wrong_name_is_found(text):
    assert names(text)


def calls(path):
    """Extras that a file passes to `install` and `needed`, and strings outside of docstrings that say what to install."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    extras, texts = [], []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("install", "needed"):
            extra = node.args[node.func.id == "needed"]
            extras += [extra.value] if isinstance(extra, ast.Constant) else []
        elif isinstance(node, ast.Constant) and id(node) not in docstrings and "pip install" in str(node.value):
            texts.append(node.value)
    return extras, texts


def test_messages_come_from_one_place_and_name_extras_that_exist():
    found = {path: calls(path) for path in SOURCES}
    assert {extra for extras, _ in found.values() for extra in extras} >= {"serve", "grammar", "ray", "cuda13", "plots"}
    assert {extra for extras, _ in found.values() for extra in extras} <= EXTRAS.keys()
    assert [path.name for path, (_, texts) in found.items() if texts] == ["distribution.py"]


@pytest.mark.parametrize("package", ["starlette", "uvicorn", "h11", "prometheus_client"])
def test_the_server_without_its_packages_says_what_to_install(package):
    hidden = f"import sys; sys.modules[{package!r}] = None; from dflash.__main__ import main"
    code = f"{hidden}; sys.exit(main(['serve', 'no.gguf']))"
    done = run_python("-c", code, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"dflash: the server needs {package}: {distribution.install('serve')}\n"


def test_plots_and_tables_without_their_packages_say_what_to_install(monkeypatch):
    from dflash.evaluation.comparison import Comparison
    from dflash.evaluation.replay.report import Replay
    from dflash.generation.display import plot

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    one, several = generation([]), Comparison([], [], 1, {}, "")
    replayed = Replay([], dflash.Strategy.of("plain"), 1, {}, "")
    for draw in (lambda: plot(one), replayed.plot, several.plot):
        with pytest.raises(DFlashError, match=r"^plot\(\) needs matplotlib: pip install 'dflash-gguf\[plots\]'$"):
            draw()
    with pytest.raises(DFlashError, match=r"^to_pandas\(\) needs pandas: pip install 'dflash-gguf\[pandas\]'$"):
        several.to_pandas()


def test_a_grammar_without_its_package_says_what_to_install(monkeypatch):
    from dflash.generation.grammar.guidance import guidance

    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match=r"needs? llguidance: pip install 'dflash-gguf\[grammar\]'$"):
        guidance()


def test_a_package_that_is_broken_is_not_called_missing():
    with pytest.raises(DFlashError, match=r"can't import numpy .*no_such_thing"), distribution.needed("this", "serve"):
        from numpy import no_such_thing  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), distribution.needed("this", "serve"):
        import dflash.no_such_module  # noqa: F401
