"""Tests that compile CUDA kernels and need CuPy run here with the emulator's, without the compiler.

Otherwise nothing but a machine with CuPy would show that they use a name, a constant or a file that is gone.
"""

import os
from pathlib import Path

from emulated import NEEDS_EMULATOR
from python_run import run_python

TESTS = Path(__file__).parents[1]


@NEEDS_EMULATOR
def test_compile_tests_use_names_that_exist():
    files = [path for path in Path(__file__).parent.glob("test_cuda_compile*.py") if "importorskip" in path.read_text()]
    plugins = [
        word for name in ("emulator", "without_compiler", "no:benchmark", "no:cacheprovider") for word in ("-p", name)
    ]
    path = os.pathsep.join([str(TESTS), str(TESTS / "support")])
    run = run_python("-m", "pytest", "-q", "-o", "addopts=", *plugins, *sorted(files), env={"PYTHONPATH": path})
    assert len(files) > 3 and " passed" in run.stdout and "skipped" not in run.stdout
