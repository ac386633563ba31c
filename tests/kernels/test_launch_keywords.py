"""Arguments that launchers change by name exist in the CUDA sources, which is checked without a GPU."""

import ast
import re
from pathlib import Path

import pytest

import dflash.kernels
from dflash.kernels.gpu.jit import source
from dflash.kernels.gpu.signature import parameters

KERNELS = Path(dflash.kernels.__file__).parent
ENTRY = re.compile(r'^extern "C" __global__ void\s+(?:__\w+__\([^)]*\)\s+)*(\w+)\(', re.MULTILINE)
LAUNCHERS = sorted(path.relative_to(KERNELS).as_posix() for path in KERNELS.rglob("cuda*.py"))


def launch_keywords(text):
    """Return the names in calls such as ``self._run(stream, grid=8, first=2)``."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and node.args]
    launches = [call for call in calls if isinstance(call.args[0], ast.Name) and call.args[0].id == "stream"]
    return {keyword.arg for call in launches for keyword in call.keywords} - {"grid", None}


def names_of(folder):
    """Return the names of all parameters of the kernels in a folder. An array may be given by its address."""
    texts = [source(path) for path in folder.glob("*.cu")]
    return {p.name for text in texts for entry in ENTRY.findall(text) for p in parameters(text, entry)}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_named_arguments_are_parameters(launcher):
    path = KERNELS / launcher
    assert launch_keywords(path.read_text(encoding="utf-8")) <= names_of(path.parent)


def test_calls_with_names_are_found():
    assert {"n_tokens", "kept"} <= launch_keywords((KERNELS / "linear/cuda.py").read_text(encoding="utf-8"))
