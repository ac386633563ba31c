"""Store numba kernels in a `CodeCache`; only this module uses private parts of numba's cache.

Numba's own cache has an index per function that two processes may write at once, executes files of any owner, and ends the
program if a file is damaged or the disk is full.
"""

import hashlib
import logging
import pickle
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba import types
from numba.core import caching, ccallback, compiler, config, serialize

from dflash.kernels.compile_cache.cache import CodeCache
from dflash.kernels.cpu import sources
from dflash.kernels.cpu.parts import EntryCompiler

_log = logging.getLogger(__name__)

_SETTINGS = (
    "OPT",
    "LOOP_VECTORIZE",
    "SLP_VECTORIZE",
    "BOUNDSCHECK",
    "DEBUGINFO_DEFAULT",
    "USING_SVML",
    "LLVM_REFPRUNE_FLAGS",
)
"""Settings of numba, from its environment variables, that change the code."""

_RESULT = ("_reduce", "_rebuild", "codegen")


def lacking() -> list[str]:
    """Return the private parts of numba used here that the installed version lacks."""
    probes = {"Dispatcher": numba.njit(_probe), "CFunc": ccallback.CFunc(_probe, ((), types.void), {}, {})}
    caches = {name: getattr(one, "_cache", None) for name, one in probes.items()}
    names = [f"{name}._cache" for name, one in caches.items() if not isinstance(one, caching.NullCache)]
    names += [f"CompileResult.{name}" for name in _RESULT if not hasattr(compiler.CompileResult, name)]
    if not hasattr(serialize, "dumps"):
        names.append("serialize.dumps")
    known = {name for name in vars(KernelCache) if not name.startswith("__")}
    return names + [f"a cache with {name}" for name in sorted(caching._Cache.__abstractmethods__ - known)]


def compiled_c_function(function: Callable[..., Any], args: tuple[types.Type, ...], store: CodeCache) -> Any:
    """Compile a function to a C function without a result, or load it from a cache."""
    made: Any = ccallback.CFunc(function, (args, types.void), {}, {}, pipeline_class=EntryCompiler)
    made._cache = KernelCache(function, store)
    made.compile()
    return made


class KernelCache(caching._Cache):
    """Cache of the compiled versions of one function, with the interface that numba expects.

    store: cache of code. The name of an entry covers all that its code is made from: the sources (`sources.closure_digest`),
        enclosed values, the processor, and versions and settings of the compiler. A function without a file is not cached.
    """

    def __init__(self, function: Callable[..., Any], store: CodeCache) -> None:
        self._function, self._store = function, store
        self._enabled = self._readable = True
        sources.see(function.__module__ or "", Path(function.__code__.co_filename))

    @property
    def cache_path(self) -> str:
        """Folder of the entries."""
        return str(self._store.folder)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function for a signature, or None. Called by numba before it compiles."""
        try:
            target_context.refresh()
            name = self._name(sig, target_context.codegen()) if self._enabled and self._readable else ""
            data = self._store.get(name) if name else None
        except Exception as error:
            _warn_once(f"{type(error).__name__}: {error}")
            return None
        if data is None:
            return None
        try:
            kept, payload = pickle.loads(data)
            if kept == sig:
                return compiler.CompileResult._rebuild(target_context, *payload)
        except Exception as error:
            self._store.discard(name, f"can't be loaded ({type(error).__name__}: {error})")
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store the compiled function for a signature. Called by numba after compiling; errors are only logged.

        Code with addresses of this process is not stored, for instance that of a kernel that calls `numba.get_num_threads`.
        """
        try:
            if data.library.has_dynamic_globals or any(not lifted.can_cache for lifted in data.lifted):
                name = self._function.__qualname__
                _log.warning("%s is compiled anew in every process: its code holds addresses of this one", name)
                return
            name = self._name(sig, data.codegen) if self._enabled else ""
            if name:
                self._store.put(name, serialize.dumps((sig, data._reduce())))
        except Exception as error:
            _warn_once(f"{type(error).__name__}: {error}")

    def enable(self) -> None:
        """Use the cache."""
        self._enabled = True

    def disable(self) -> None:
        """Bypass the cache: compile everything, store nothing."""
        self._enabled = False

    def flush(self) -> None:
        """Ignore existing entries but store new ones. Called by numba before it recompiles a function."""
        self._readable = False

    def _name(self, sig: Any, codegen: Any) -> str:
        """Return the name of an entry, or an empty string for a function that can't be cached."""
        function = self._function
        digest = sources.closure_digest(function.__module__ or "", Path(function.__code__.co_filename))
        if digest is None:
            return ""
        code, cells = function.__code__, tuple(cell.cell_contents for cell in function.__closure__ or ())
        parts = (
            function.__module__,
            function.__qualname__,
            code.co_firstlineno,
            digest,
            str(sig),
            codegen.magic_tuple(),
            code.co_code,
            serialize.dumps(cells) if cells else b"",
            sys.implementation.cache_tag,
            *_compiler(),
        )
        name = hashlib.sha256("\0".join(map(repr, parts)).encode()).hexdigest()[:32]
        return f"{re.sub(r'[^A-Za-z0-9_.]', '', function.__qualname__)[:60]}-{name}.nbc"


@cache
def _compiler() -> tuple[str, ...]:
    """Return versions and settings of the compiler."""
    settings = (f"{name} {getattr(config, name, None)}" for name in _SETTINGS)
    return numba.__version__, llvmlite.__version__, np.__version__, *settings


@cache
def _warn_once(reason: str) -> None:
    _log.warning("kernels are compiled anew in every process: numba %s, %s", numba.__version__, reason)


def _probe() -> None: ...
