"""The sources that a kernel's code is made from: exactly the files that its file imports, directly or not."""

import ast
import os
import shutil
import sys
from functools import cache
from pathlib import Path

import pytest

import dflash
from dflash.kernels.cpu import jit, sources
from dflash.kernels.cpu.cache import KernelCache

KERNELS = Path(dflash.__file__).parent / "kernels"
FILES = sorted(KERNELS.rglob("*.py"))
OPS = (
    "attention.cpu",
    "delta.cpu",
    "formats.cpu",
    "joined.cpu",
    "linear.cpu",
    "lookup.cpu",
    "norm.cpu",
    "sample.top_k",
    "tree.cpu",
)
EDITED = (
    *("attention/page.py", "cpu/jit.py", "cpu/simd/emit.py", "formats/lanes.py", "joined/table.py", "linear/cpu.py"),
    *("lookup/cpu.py", "norm/cpu.py", "norm/reference.py", "ragged.py", "sample/top_p.py", "gpu/jit.py"),
)


def name_of(path):
    parts = path.relative_to(KERNELS).with_suffix("").parts
    return ".".join(("dflash.kernels", *(part for part in parts if part != "__init__")))


MODULES = {name_of(path): path for path in FILES}


@cache
def parsed_imports(name):
    """Return the modules of this package that a module imports, by Python's own parser."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                member = f"{node.module}.{alias.name}"
                found.add(member if member in MODULES else node.module)
    return found & set(MODULES)


def parsed_closure(name):
    found, waiting = {name}, [name]
    while waiting:
        new = parsed_imports(waiting.pop()) - found
        found |= new
        waiting += new
    return found


@pytest.mark.parametrize("op", OPS)
def test_the_closure_is_that_of_pythons_parser(op):
    name = f"dflash.kernels.{op}"
    assert set(sources.closure(name, MODULES[name])) == parsed_closure(name)


def test_no_import_of_any_file_is_missed():
    for name, path in MODULES.items():
        found = set(sources.imports(path.read_text(), name, is_package=path.name == "__init__.py"))
        assert parsed_imports(name) <= found, name


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("import a.b, c as d", {"a.b", "c"}),
        ("from a import (\n    b,  # not )\n    c as d,\n)", {"a", "a.b", "a.c"}),
        ("from a import b, \\\n    c", {"a.b", "a.c"}),
        ("x = 1; import a", {"a"}),
        ("if True: from a import b", {"a.b"}),
        ("    from a import b", {"a.b"}),
        ("from . import b", {"pack.b"}),
        ("from ..other.c import d", {"other.c", "other.c.d"}),
        ("from a import *", {"a"}),
    ],
)
def test_ways_to_write_an_import(text, want):
    assert want <= set(sources.imports(text, "pack.module"))


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """Return a copy of the package's kernels that may be edited."""
    copy = tmp_path / "kernels"
    shutil.copytree(KERNELS, copy, ignore=shutil.ignore_patterns("__pycache__", "*.cu*"))
    monkeypatch.setattr(sources, "_KERNELS", copy)
    forget(monkeypatch)
    yield copy
    sources._in_package.cache_clear()


def forget(monkeypatch):
    """Continue as a new process would."""
    monkeypatch.setattr(sources, "_seen", {})
    sources._in_package.cache_clear()


def digests(copy):
    return {op: sources.closure_digest(f"dflash.kernels.{op}", copy / f"{op.replace('.', '/')}.py") for op in OPS}


def test_an_edit_changes_exactly_the_ops_whose_closure_holds_the_file(copied, monkeypatch):
    before = digests(copied)
    assert None not in before.values()
    for edited in EDITED:
        path, name = copied / edited, name_of(KERNELS / edited)
        content = path.read_text()
        path.write_text(content + "# a comment\n")
        forget(monkeypatch)
        changed = {op for op, digest in digests(copied).items() if digest != before[op]}
        assert changed == {op for op in OPS if name in parsed_closure(f"dflash.kernels.{op}")}, edited
        path.write_text(content)
    forget(monkeypatch)
    assert digests(copied) == before


def test_a_file_that_changes_while_the_process_runs_is_not_cached(copied):
    assert sources.package_digest()
    assert digests(copied)["norm.cpu"]
    path = copied / "cpu" / "simd" / "emit.py"
    os.utime(path, (1.0, 1.0))
    assert digests(copied)["norm.cpu"] is None
    assert digests(copied)["lookup.cpu"] is not None


def test_modules_of_the_user_are_followed_and_installed_ones_are_not(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_parts.py").write_text("import json, numba\n\ndef half(x):\n    return x / 2\n")
    (tmp_path / "my_op.py").write_text("from my_parts import half\nfrom dflash.kernels.ragged import PAGE\n")
    try:
        import my_op
    finally:
        found = sources.closure("my_op", tmp_path / "my_op.py")
        for name in ("my_op", "my_parts"):
            sys.modules.pop(name, None)
    assert my_op.PAGE
    assert set(found) == {"my_op", "my_parts", "dflash.kernels.ragged"}


@pytest.mark.parametrize("setting", ["OPT", "BOUNDSCHECK", "LOOP_VECTORIZE"])
def test_settings_of_the_compiler_are_part_of_a_name(monkeypatch, setting):
    from numba.core import config, registry

    from dflash.kernels.cpu import cache as numba_cache

    def double(x):
        return 2 * x

    names = set()
    for value in (getattr(config, setting), "another"):
        monkeypatch.setattr(config, setting, value)
        numba_cache._compiler.cache_clear()
        codegen = registry.cpu_target.target_context.codegen()
        names.add(KernelCache(double, jit.CACHE)._name((), codegen))
    numba_cache._compiler.cache_clear()
    assert len(names) == 2
    assert "" not in names
