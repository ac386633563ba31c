"""Compile numba kernels once, keep them on disk, and run them on all threads.

A kernel is made of its own file, of `simd` and of its neighbours. So the cache folder carries a hash of every source under
`kernels/` and of where they lie: after any change everything is compiled anew, and two installs never share a kernel. The
folder is ``numba-<hash>`` in ``$NUMBA_CACHE_DIR/dflash`` if that variable is set, else in ``$XDG_CACHE_HOME/dflash``, else
in ``~/.cache/dflash``.
"""

import functools
import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba import types

from dflash.kernels.code_cache import CodeCache
from dflash.kernels.code_folder import cache_folder

_log = logging.getLogger(__name__)


def _digest() -> str:
    root = Path(__file__).parents[1]
    digest = hashlib.sha256(f"{numba.__version__} {root}".encode())
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


CACHE = CodeCache(cache_folder("NUMBA_CACHE_DIR", f"numba-{_digest()}"), siblings="numba-*")
"""Compiled kernels of this version of the package."""

# Spinning for long makes a launch wait for a scheduler's slice as soon as anything else runs on the same cores.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if "NUMBA_THREADING_LAYER" not in os.environ:
    numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]


def inline(function: Callable[..., Any]) -> Any:
    """A piece of a kernel: compiled into its callers, callable from Python in tests."""
    piece = _kept(numba.njit(nogil=True, error_model="numpy")(function))
    if _templates_are_read():
        piece.get_call_template = functools.partial(_template, piece.get_call_template)
    return piece


def _kept(dispatcher: Any) -> Any:
    """Let a function read and fill the cache on disk."""
    if not _lacking():
        from dflash.kernels.cpu.cache import KernelCache

        dispatcher._cache = KernelCache(dispatcher.py_func, CACHE)
    return dispatcher


@functools.cache
def _lacking() -> str:
    """What this numba lacks of what the cache uses of its private parts; nothing for the versions that were tried."""
    try:
        from dflash.kernels.cpu.cache import check_numba

        lacking = check_numba()
    except (ImportError, AttributeError, TypeError) as error:
        lacking = str(error)
    if lacking:
        _log.warning("numba %s lacks %s: kernels are compiled anew in every process", numba.__version__, lacking)
    return lacking


@functools.cache
def _templates_are_read() -> bool:
    """Whether numba, as it compiles a call, asks the `get_call_template` of an instance."""

    class Asked(Exception):
        pass

    def ask(*_: Any) -> None:
        raise Asked

    try:
        probe = numba.njit(_probe)
        if not callable(probe.get_call_template):
            raise TypeError("get_call_template is no method")
        probe.get_call_template = ask
        types.Dispatcher(probe).get_call_type(None, (), {})
        reason = "it is not asked"
    except Asked:
        return True
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    _log.warning("numba %s: get_call_template can't be replaced (%s), so compiling takes longer", numba.__version__, reason)
    return False


def _probe() -> None: ...


def _template(make: Callable[..., Any], args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
    """What a caller calls. Left alone, numba compiles a piece anew for a literal and for a `prange`'s unsigned index."""
    return make(tuple(_plain(kind) for kind in args), {name: _plain(kind) for name, kind in kws.items()})


def _plain(kind: types.Type) -> types.Type:
    kind = types.unliteral(kind)
    return types.int64 if kind == types.uint64 else kind


def kernel(function: Callable[..., Any]) -> Any:
    """An entry point whose `numba.prange` loops run on all threads; no fast-math, so that sums keep their order."""
    return _kept(numba.njit(nogil=True, error_model="numpy", parallel=True)(function))


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
