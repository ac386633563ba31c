"""The cases that `tests/gpu/sanitize.sh` runs under compute-sanitizer exist."""

import re
from pathlib import Path

from emulated import NEEDS_EMULATOR
from python_run import run_python

ROOT = Path(__file__).parents[2]
SCRIPT = (ROOT / "tests" / "gpu" / "sanitize.sh").read_text()


@NEEDS_EMULATOR
def test_all_cases_exist():
    cases = re.findall(r'\[(\w+)\]="([^"]+)"', SCRIPT)
    wanted = {f"tests/gpu/test_gpu_{op}.py::{case.strip()}" for op, some in cases for case in some.splitlines()}
    assert len(wanted) > 60
    files = sorted({case.partition("::")[0] for case in wanted})
    options = "-p", "emulator", "-o", "addopts=", "--collect-only", "-q"
    found = run_python("-m", "pytest", *options, *files, cwd=ROOT, env={"PYTHONPATH": str(ROOT / "tests")})
    assert wanted - set(found.stdout.splitlines()) == set()


def test_kernels_read_the_macro_for_racecheck():
    """A macro that no kernel reads would leave the false reports in."""
    (macro,) = re.findall(r"\bmacro=(\w+)", SCRIPT)
    kernels = ROOT / "dflash" / "kernels"
    assert any(f"if ({macro} ||" in path.read_text(encoding="utf-8") for path in kernels.rglob("*.cu"))
