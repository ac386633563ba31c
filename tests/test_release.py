"""The sdist and the wheel that is built from it, installed into an environment without anything else."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from hang_guard import GUARD

from dflash.__main__ import COMMANDS

ROOT = Path(__file__).parent.parent
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
MAX_WHEEL = 45_000_000
SOURCES = ("CITATION.cff", "LICENSE", "README.md", "dflash_gguf.py", "pyproject.toml")
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, 'build_' + sys.argv[1])(sys.argv[2]))"
OTHER = "def __getattr__(name):\n    raise AttributeError(name)\n"
"""A package that is imported as dflash, too."""


def done(*words, **settings):
    return subprocess.run(words, check=False, capture_output=True, text=True, timeout=GUARD, **settings)


def build(kind, folder, sources):
    """Build in a folder of sources as pip does, with the setuptools of this environment; returns the file."""
    built = done(sys.executable, "-W", "ignore", "-c", BUILD, kind, str(folder), cwd=sources)
    assert built.returncode == 0, built.stderr
    return folder / built.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("release")
    shutil.copytree(ROOT / "dflash", folder / "sources" / "dflash", ignore=shutil.ignore_patterns("__pycache__"))
    for name in SOURCES:
        shutil.copy(ROOT / name, folder / "sources")
    return build("sdist", folder, folder / "sources")


@pytest.fixture(scope="module")
def wheel(sdist):
    assert done(sys.executable, "-m", "tarfile", "--extract", str(sdist), str(sdist.parent)).returncode == 0
    return build("wheel", sdist.parent, sdist.parent / f"dflash_gguf-{VERSION}")


@pytest.fixture(scope="module")
def bare(wheel):
    """Folder of an environment with the wheel, beside which only the dependencies of this one are found."""
    folder = wheel.parent / "environment"
    assert done(sys.executable, "-m", "venv", "--without-pip", str(folder)).returncode == 0
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    here = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (site / "dependencies.pth").write_text("\n".join(here))
    words = ["--python", str(folder), "install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel)]
    installed = done(sys.executable, "-m", "pip", *words)
    assert installed.returncode == 0, installed.stderr
    return folder


def command(bare, *words):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return done(str(bare / "bin" / "dflash"), *words, cwd=bare, env=environment)


def test_the_archives_hold_what_they_should(sdist, wheel):
    assert (sdist.name, wheel.name) == (f"dflash_gguf-{VERSION}.tar.gz", f"dflash_gguf-{VERSION}-py3-none-any.whl")
    assert wheel.stat().st_size <= MAX_WHEEL
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    kept = {path.relative_to(ROOT).as_posix() for path in (ROOT / "dflash").rglob("*.*") if "__pycache__" not in path.parts}
    assert held == {*kept, "dflash_gguf.py"}, "a new kind of file needs a row in package-data"


def test_its_commands_work(bare):
    assert command(bare, "--version").stdout == f"{VERSION}\n"
    about = json.loads(command(bare, "info", "demo", "--json").stdout)
    assert Path(about["model"]["files"][0]).is_relative_to(bare)
    for name in COMMANDS:
        shown = command(bare, name, "--help")
        assert (shown.returncode, "usage: dflash" in shown.stdout, shown.stderr) == (0, True, "")
    for words in (["run", "no.gguf", "hi"], ["chat", "no.gguf"], ["bench", "no.gguf"], ["serve", "no.gguf", "--port", "0"]):
        refused = command(bare, *words)
        assert refused.returncode == 1
        assert refused.stderr.splitlines()[-1].startswith("dflash: no.gguf: there is no such file")


def test_files_of_another_package_called_dflash_are_named(bare, tmp_path):
    """Z Lab's package: installed over this one, under it, and before it on the path."""
    site = Path(sysconfig.get_path("purelib", vars={"base": str(bare)}))
    own = (site / "dflash" / "__init__.py").read_text()
    try:
        (site / "dflash-0.1.0.dist-info").mkdir()
        under = command(bare, "--version")
        assert (under.returncode, under.stdout) == (0, f"{VERSION}\n")
        (site / "dflash" / "__init__.py").write_text(OTHER)
        over = command(bare, "--version")
        code = "import sys; from dflash.cli import main; sys.exit(main())"
        script = done(str(bare / "bin" / "python"), "-c", code, cwd=bare)
        (site / "dflash" / "__init__.py").unlink()
        removed = command(bare, "--version")
        for each in (under, over, script, removed):
            assert f"{site / 'dflash'} holds files of dflash-gguf and of another package" in each.stderr
            assert len(each.stderr.splitlines()) == 1
        assert [over.returncode, script.returncode, removed.returncode] == [1, 1, 1]
        (tmp_path / "dflash").mkdir()
        (tmp_path / "dflash" / "__init__.py").write_text(OTHER)
        words = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import dflash_gguf; sys.exit(dflash_gguf.main())"
        before = done(str(bare / "bin" / "python"), "-c", words, cwd=bare)
        assert before.returncode == 1
        assert before.stderr.startswith(f"dflash: Python imports {tmp_path / 'dflash' / '__init__.py'} as dflash")
    finally:
        (site / "dflash" / "__init__.py").write_text(own)
        (site / "dflash-0.1.0.dist-info").rmdir()
