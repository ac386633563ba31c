"""Imports go down: doors, serve, generation, decode, model, kernels. Lazy ones count."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dflash

ROOT = Path(dflash.__file__).parent
FLOORS = ("kernels", "model", "decode", "generation", "serve")
DOORS = len(FLOORS)
BELOW_ALL = ("dflash.errors", "dflash.distribution", "dflash.json_types")
ABOVE = ("dflash.serve.__main__", "dflash.serve.ray")
OF_PLUGINS = "dflash.decode.warmup.compile_worker"
"""A program of its own, which is given the names of modules outside the package."""
ONLY_IN = {"cupy": "kernels", "numba": "kernels", "starlette": "serve", "uvicorn": "serve"}
RAY = "dflash.serve.ray"
INSIDE = "import importlib\nimportlib.import_module(f'.{name}', __name__)"
SOURCES = sorted(ROOT.rglob("*.py"))


def floor(module: str) -> int:
    """Number of the floor that a module of dflash lies on, the ground floor being 0."""
    parts = module.split(".")
    if module.startswith(ABOVE):
        return DOORS
    return FLOORS.index(parts[1]) if len(parts) > 1 and parts[1] in FLOORS else DOORS


def module_name(path: Path, root: Path = ROOT) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_module(name: str) -> bool:
    path = ROOT.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def imports(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a file imports, also by `importlib`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                yield node.lineno, inner if inner.startswith("dflash.") and is_module(inner) else module
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            name = node.args[0] if node.args else None
            known = isinstance(name, ast.Constant) and isinstance(name.value, str)
            yield node.lineno, package if _is_inside(node) else name.value if known else "?"


def _is_inside(call: ast.Call) -> bool:
    """Return True for ``import_module(f".{name}", __name__)``, which imports from the file's own folder."""
    return len(call.args) == 2 and bool(re.match(r"f'\.\{[^}]+\}', __name__$", ", ".join(map(ast.unparse, call.args))))


def complaints(path: Path, source: str) -> list[str]:
    module = module_name(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = []
    for line, name in imports(ast.parse(source), package):
        top = name.split(".")[0]
        if name == "?" and floor(module) < DOORS and module != OF_PLUGINS:
            found.append(f"{module}:{line} imports a name that only running it would tell")
        elif top == "dflash" and name not in BELOW_ALL and floor(name) > floor(module):
            found.append(f"{module}:{line} imports {name}, which is above it")
        elif top in ONLY_IN and module.split(".")[1:2] != [ONLY_IN[top]]:
            found.append(f"{module}:{line} imports {name}, which only {ONLY_IN[top]}/ may")
        elif top == "ray" and not module.startswith(RAY):
            found.append(f"{module}:{line} imports {name}, which only serve/ray/ may")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_only_go_down(path):
    assert complaints(path, path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import dflash.decode.engine",
        "from dflash.decode import engine",
        "from dflash import decode",
        "from dflash import load",
        "import dflash",
        "from ..decode import engine",
        "from .. import decode",
        "def later():\n    from dflash.serve import app",
        "import importlib\nimportlib.import_module('dflash.serve')",
        "import importlib\nimportlib.import_module(name)",
        "import importlib\nimportlib.import_module(f'.{name}', 'dflash.serve')",
        "import importlib\nimportlib.import_module(f'..{name}', __name__)",
        "import cupy",
        "from numba import njit",
        "from ray import serve",
        "from dflash.serve.ray import app",
    ],
)
def test_an_upward_import_is_found(source):
    assert complaints(ROOT / "model" / "invented.py", source)


@pytest.mark.parametrize(
    "source",
    ["from dflash.errors import ModelError", "from dflash import errors", "import numpy", "from . import config", INSIDE],
)
def test_a_sound_import_passes(source):
    assert not complaints(ROOT / "model" / "invented.py", source)
