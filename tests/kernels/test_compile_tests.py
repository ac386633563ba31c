"""Tests that compile CUDA kernels and need CuPy run here with the emulator's, without the compiler.

Otherwise nothing but a machine with CuPy would show that they use a name, a constant or a file that is gone.
"""

import os
import subprocess
import sys
from pathlib import Path

from emulated import NEEDS_EMULATOR

TESTS = Path(__file__).parents[1]


@NEEDS_EMULATOR
def test_compile_tests_use_names_that_exist():
    files = [path for path in Path(__file__).parent.glob("test_cuda_compile*.py") if "importorskip" in path.read_text()]
    plugins = [
        word for name in ("emulator", "without_compiler", "no:benchmark", "no:cacheprovider") for word in ("-p", name)
    ]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", *plugins, *sorted(map(str, files))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS / "support")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-500:]
    assert len(files) > 3 and " passed" in run.stdout and "skipped" not in run.stdout
