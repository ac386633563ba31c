"""CUDA kernels run without a GPU, on the emulator of `tests/emulator`: tests of `tests/gpu` pass, and faults are found."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from emulated import NEEDS_EMULATOR

TESTS = Path(__file__).parents[2]
pytestmark = NEEDS_EMULATOR

SELECTED = {
    "norm": "graph or company",
    "linear": "every_format and (6-Q4_K or 64-Q8_0)",
    "wide": "every_format and Q6_K",
    "moe": "every_format and Q4_K",
    "split_twice": "r2-untied and overlapping",
    "draft_other_gpu": "candidates and dspark-1 or exist",
    "attention": "test_attend and q4_0 and 35B and block and not q8_0",
}
"""The tests of each file ``test_gpu_NAME.py`` that run here, as ``-k`` of pytest selects them. Their kernels use mma,
wgmma, cp.async, bulk copies, mbarriers, graphs, data that two GPUs exchange, and copies between two GPUs."""

FAULTS = {
    "none": "640.0",
    "beyond an array": "ILLEGAL_ADDRESS",
    "a barrier that not all reach": "32 of warp 0 at a barrier",
    "too many arrivals": "more arrivals than expected",
    "too much shared memory": "declared and dynamic shared memory are too much",
}


def run(*command):
    """Output of a Python command in a process that sees emulated GPUs."""
    variables = {"PYTHONPATH": str(TESTS), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "EMULATOR_PROCESSORS": "16"}
    variables["EMULATOR_GPUS"] = "2"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | variables
    done = subprocess.run(
        [sys.executable, *command], cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def output():
    """Report of one process that runs all selected tests."""
    selected = " or ".join(f"test_gpu_{name}.py and ({tests})" for name, tests in SELECTED.items())
    files = [f"tests/gpu/test_gpu_{name}.py" for name in SELECTED]
    options = ["-p", "emulator", "-p", "no:benchmark", "-p", "no:cacheprovider", "-rA"]
    return run("-m", "pytest", *options, "-k", selected, *files)[1]


@pytest.mark.parametrize("name", SELECTED)
def test_on_an_emulated_gpu(name, output):
    outcomes = set(re.findall(rf"^(\w+) .*\btest_gpu_{name}\.py", output, re.MULTILINE))
    assert outcomes == {"PASSED"}, output


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_the_launch(fault):
    _, output = run(TESTS / "emulator" / "faults.py", fault)
    assert FAULTS[fault] in output
