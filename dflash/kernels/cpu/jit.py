"""Compile numba kernels once, cache them on disk, and run them on all threads.

A kernel depends on its own file, on `simd` and on other files. So the name of the cache folder includes a hash of every
source under `kernels/` and of their path. After any change all kernels are recompiled, and two installs never share one. The
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
"""Cache of the compiled kernels of this version of the package."""

# With long spinning, a launch waits for a scheduler's time slice as soon as other work runs on the same cores.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if "NUMBA_THREADING_LAYER" not in os.environ:
    numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]


def inline(function: Callable[..., Any]) -> Any:
    """Decorate a part of a kernel: compiled into its callers, and callable from Python."""
    piece = _kept(numba.njit(nogil=True, error_model="numpy")(function))
    if _templates_are_read():
        piece.get_call_template = functools.partial(_template, piece.get_call_template)
    return piece


def _kept(dispatcher: Any) -> Any:
    """Let a function use the cache on disk, and return it."""
    if not _lacking():
        from dflash.kernels.cpu.cache import KernelCache

        dispatcher._cache = KernelCache(dispatcher.py_func, CACHE)
    return dispatcher


@functools.cache
def _lacking() -> str:
    """Return the private parts of numba that the cache needs and this version lacks; empty for the tested versions."""
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
    """Return whether numba calls the `get_call_template` of an instance when it compiles a call."""

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
        reason = "it is not called"
    except Asked:
        return True
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    _log.warning("numba %s: get_call_template can't be replaced (%s), so compiling takes longer", numba.__version__, reason)
    return False


def _probe() -> None: ...


def _template(make: Callable[..., Any], args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
    """Generalise argument types: otherwise numba recompiles a function for literals and for unsigned `prange` indices."""
    return make(tuple(_plain(kind) for kind in args), {name: _plain(kind) for name, kind in kws.items()})


def _plain(kind: types.Type) -> types.Type:
    kind = types.unliteral(kind)
    return types.int64 if kind == types.uint64 else kind


def c_function(*args: types.Type) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function that kernels call by its `address`; it has no result, and is compiled where it is decorated."""

    def compiled(function: Callable[..., Any]) -> Any:
        if _lacking():
            return numba.cfunc(types.void(*args))(function)
        from dflash.kernels.cpu.cache import compiled_c_function

        return compiled_c_function(function, args, CACHE)

    return compiled


def kernel(function: Callable[..., Any]) -> Any:
    """Decorate an entry point whose `numba.prange` loops run on all threads; no fast-math, so that sums keep their order."""
    return _kept(numba.njit(nogil=True, error_model="numpy", parallel=True)(function))


def use_threads(n: int) -> None:
    """Run kernels started by this thread on `n` threads, or on numba's maximum if that is less."""
    numba.set_num_threads(min(n, numba.config.NUMBA_NUM_THREADS))


def runs_in_several_threads() -> bool:
    """Return whether several threads may start kernels at the same time: numba's "workqueue" layer would abort the process.

    Kernels keep no state between launches, so launches on different arrays do not interfere.
    """
    try:
        return bool(numba.threading_layer() != "workqueue")
    except ValueError:  # no kernel has run yet
        return False
