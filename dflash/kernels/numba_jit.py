"""Compile numba kernels once, keep them on disk, and run them on all threads.

numba's own cache looks at the file of a kernel alone; a kernel here is also made of `simd.py` and of its neighbours. So the
cache folder carries a hash of every source under `kernels/` and of where they lie: after any change everything is compiled
anew, and two installs never share a kernel.
"""

import atexit
import functools
import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba import types

_log = logging.getLogger(__name__)

_KEPT_DAYS = 30


def _digest() -> str:
    root = Path(__file__).parent
    digest = hashlib.sha256(f"{numba.__version__} {root}".encode())
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _cache_folder() -> Path:
    """A folder that can be written to: in the user's cache, or else, with a warning in the log, a temporary one."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dflash"
    folder = base / f"numba-{_digest()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(folder)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="dflash-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _log.warning("%s can't be written to: kernels are compiled anew in every process", base)
    else:
        _forget_old(base, folder)
    return folder


def _forget_old(base: Path, current: Path) -> None:
    """Remove what other versions left and nobody has added to for a while."""
    for folder in base.glob("numba-*"):
        if folder != current and time.time() - folder.stat().st_mtime > _KEPT_DAYS * 86400:
            shutil.rmtree(folder, ignore_errors=True)


if not os.environ.get("NUMBA_CACHE_DIR"):
    numba.config.CACHE_DIR = str(_cache_folder())

# Spinning for long makes a launch wait for a scheduler's slice as soon as anything else runs on the same cores.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if "NUMBA_THREADING_LAYER" not in os.environ:
    numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]


def inline(function: Callable[..., Any]) -> Any:
    """A piece of a kernel: compiled into its callers, callable from Python in tests."""
    piece = numba.njit(nogil=True, error_model="numpy", cache=True)(function)
    piece.get_call_template = functools.partial(_template, piece.get_call_template)
    return piece


def _template(make: Callable[..., Any], args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
    """What a caller calls. Left alone, numba compiles a piece anew for a literal and for a `prange`'s unsigned index."""
    return make(tuple(_plain(kind) for kind in args), {name: _plain(kind) for name, kind in kws.items()})


def _plain(kind: types.Type) -> types.Type:
    kind = types.unliteral(kind)
    return types.int64 if kind == types.uint64 else kind


def kernel(function: Callable[..., Any]) -> Any:
    """An entry point whose `numba.prange` loops run on all threads; no fast-math, so that sums keep their order."""
    return numba.njit(nogil=True, error_model="numpy", cache=True, parallel=True)(function)


def use_threads(n: int) -> None:
    """Let the kernels that this thread starts run on `n` cores, or on as many as numba has."""
    numba.set_num_threads(min(n, numba.config.NUMBA_NUM_THREADS))


def runs_in_several_threads() -> bool:
    """Return whether kernels may be started by several threads at a time: numba's simplest scheduler ends the process then.

    No kernel keeps anything between launches, so that two launches on different arrays never meet.
    """
    try:
        return bool(numba.threading_layer() != "workqueue")
    except ValueError:  # nothing has run yet
        return False
