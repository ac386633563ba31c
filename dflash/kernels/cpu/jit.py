"""Compile numba kernels once, cache them on disk, and run them on all threads.

The cache is a folder ``numba-<version>`` in ``$NUMBA_CACHE_DIR/dflash`` if that variable is set, else in
``$XDG_CACHE_HOME/dflash``, else in ``~/.cache/dflash``. All processes and installs share it. An entry is named after what
its code is made from (`cache`): a change recompiles the kernels whose sources it touches. `compile_cache` removes what
was not used for 30 days.
"""

import functools
import logging
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numba
from numba import types

from dflash.kernels.compile_cache.cache import CodeCache
from dflash.kernels.compile_cache.folder import cache_folder
from dflash.kernels.cpu import sources
from dflash.kernels.cpu.dry_run import intercept, record

_log = logging.getLogger(__name__)

SOURCES = sources.package_digest()
"""Hash of all sources of kernels; computed before the first kernel is declared."""

CACHE = CodeCache(cache_folder("NUMBA_CACHE_DIR", f"numba-{numba.__version__}"), siblings="numba-*")
"""Cache of compiled kernels."""

# With long spinning, a launch waits for a scheduler's time slice as soon as other work runs on the same cores.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if "NUMBA_THREADING_LAYER" not in os.environ:
    numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]


_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
"""Options of numba for all kernels; no fast-math, so that sums keep their order."""


def inline(function: Callable[..., Any]) -> Any:
    """Decorate a part of a kernel: compiled into its callers, and callable from Python."""
    entry = _entry(function)
    if not _lacking() and _templates_are_read():
        from dflash.kernels.cpu.parts import call_as_part

        call_as_part(entry, function, **_OPTIONS)
    return entry


def kernel(function: Callable[..., Any]) -> Any:
    """Decorate an entry point whose `numba.prange` loops run on all threads."""
    return _entry(function, parallel=True)


def _entry(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a function for calls from Python, and let it use the cache on disk."""
    if _lacking():
        return numba.njit(**_OPTIONS, **options)(function)
    from dflash.kernels.cpu.cache import KernelCache
    from dflash.kernels.cpu.parts import EntryCompiler

    entry: Any = numba.njit(pipeline_class=EntryCompiler, no_cfunc_wrapper=True, **_OPTIONS, **options)(function)
    entry._cache = KernelCache(function, CACHE)
    intercept(entry)
    return entry


@functools.cache
def _lacking() -> str:
    """Return the private parts of numba used here that this version lacks; empty for the tested versions."""
    try:
        from dflash.kernels.cpu import cache, parts

        lacking = ", ".join((*cache.lacking(), *parts.lacking()))
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


def c_function(*args: types.Type) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function that kernels call by its `address`; it has no result, and is compiled where it is decorated."""

    def compiled(function: Callable[..., Any]) -> Any:
        if _lacking():
            return numba.cfunc(types.void(*args))(function)
        from dflash.kernels.cpu.cache import compiled_c_function

        compile_now = functools.partial(compiled_c_function, function, args, CACHE)
        return SimpleNamespace(address=0) if record(function, args, compile_now) else compile_now()

    return compiled


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
