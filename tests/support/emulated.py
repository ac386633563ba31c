"""Mark of tests that run CUDA kernels on the emulator of `tests/emulator`."""

import platform
import shutil
import sys

import pytest

NEEDS_EMULATOR = pytest.mark.skipif(
    not shutil.which("g++") or platform.machine() != "x86_64" or sys.platform != "linux",
    reason="the emulator needs g++ on Linux and x86-64: apt-get install g++",
)
