"""Compile numba kernels once, keep them on disk, and run them on all threads.

numba's own cache looks at the file of a kernel alone; a kernel here is also made of `simd.py` and of its neighbours. So the
cache folder carries a hash of every source under `kernels/`: after any change everything is compiled anew, and two
installs never share a stale kernel.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba


def _cache_folder() -> Path:
    root = Path(__file__).parent
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dflash" / f"numba-{digest.hexdigest()[:16]}"


if not os.environ.get("NUMBA_CACHE_DIR"):
    numba.config.CACHE_DIR = str(_cache_folder())

# Spinning for long makes a launch wait for a scheduler's slice as soon as anything else runs on the same cores.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if "NUMBA_THREADING_LAYER" not in os.environ:
    numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]


def inline(function: Callable[..., Any]) -> Any:
    """A piece of a kernel: compiled into its callers, callable from Python in tests."""
    return numba.njit(nogil=True, error_model="numpy", cache=True)(function)


def kernel(function: Callable[..., Any]) -> Any:
    """An entry point whose `numba.prange` loops run on all threads; no fast-math, so that sums keep their order."""
    return numba.njit(nogil=True, error_model="numpy", cache=True, parallel=True)(function)


def use_threads(n: int) -> None:
    """Let the kernels that this thread starts run on `n` cores, or on as many as numba has."""
    numba.set_num_threads(min(n, numba.config.NUMBA_NUM_THREADS))
