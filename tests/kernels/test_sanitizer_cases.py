"""The cases that `tests/gpu/sanitize.sh` runs under compute-sanitizer exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_all_cases_exist():
    text = (ROOT / "tests" / "gpu" / "sanitize.sh").read_text()
    cases = re.findall(r'\[(\w+)\]="([^"]+)"', text)
    wanted = {f"tests/gpu/test_gpu_{op}.py::{case.strip()}" for op, some in cases for case in some.splitlines()}
    assert len(wanted) > 60
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "emulator", "-o", "addopts=", "--collect-only", "-q", "tests/gpu"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert wanted - set(found.stdout.splitlines()) == set()
