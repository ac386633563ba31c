"""Numba kernels in a `CodeCache`: the one place that uses private parts of numba's cache.

Numba's own cache has an index per function that two processes may write at once, executes files of any owner, and ends the
program if a file is damaged or the disk is full.
"""

import hashlib
import logging
import pickle
import re
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numba
from numba.core import caching, compiler, serialize

from dflash.kernels.code_cache import CodeCache

_log = logging.getLogger(__name__)

_KERNELS = Path(__file__).parents[1]
_RESULT = ("_reduce", "_rebuild", "codegen")


def check_numba() -> str:
    """Return what this numba lacks of what is used here, or an empty string.

    Costs microseconds; called when kernels are declared.
    """
    probe = numba.njit(_probe)
    lacking = [] if isinstance(getattr(probe, "_cache", None), caching.NullCache) else ["Dispatcher._cache"]
    lacking += [f"CompileResult.{name}" for name in _RESULT if not hasattr(compiler.CompileResult, name)]
    if not hasattr(serialize, "dumps"):
        lacking.append("serialize.dumps")
    known = {name for name in vars(KernelCache) if not name.startswith("__")}
    lacking += [f"a cache with {name}" for name in sorted(caching._Cache.__abstractmethods__ - known)]
    return ", ".join(lacking)


class KernelCache(caching._Cache):
    """What numba asks for a compiled version of one function, and hands a new one to.

    Parameters
    ----------
    function : callable
        The Python function.
    store : CodeCache
        Its folder must be another one for other sources of the package. A function from elsewhere is known by the content
        of its file; one without a file is not kept.
    """

    def __init__(self, function: Callable[..., Any], store: CodeCache) -> None:
        self._function, self._store = function, store
        self._enabled = self._readable = True

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
        """Keep what was compiled for a signature. Called by numba after it compiled; the result is used whatever happens."""
        try:
            if data.library.has_dynamic_globals or any(not lifted.can_cache for lifted in data.lifted):
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
        """Compile everything and keep nothing."""
        self._enabled = False

    def flush(self) -> None:
        """Compile everything and keep it. Called by numba before it compiles a function anew."""
        self._readable = False

    def _name(self, sig: Any, codegen: Any) -> str:
        """Return the name of an entry, or nothing for a function that is in no file."""
        function = self._function
        source = _source(function.__code__.co_filename)
        if source is None:
            return ""
        code, cells = function.__code__, tuple(cell.cell_contents for cell in function.__closure__ or ())
        parts = (
            function.__module__,
            function.__qualname__,
            code.co_firstlineno,
            source,
            str(sig),
            codegen.magic_tuple(),
            code.co_code,
            serialize.dumps(cells) if cells else b"",
            sys.implementation.cache_tag,
        )
        digest = hashlib.sha256("\0".join(map(repr, parts)).encode()).hexdigest()[:32]
        return f"{re.sub(r'[^A-Za-z0-9_.]', '', function.__qualname__)[:60]}-{digest}.nbc"


@lru_cache(None)
def _source(path: str) -> str | None:
    """Return what tells a version of a source file from another one; nothing for those that the folder's name stands for."""
    if _KERNELS in Path(path).parents:
        return ""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


@lru_cache(None)
def _warn_once(reason: str) -> None:
    _log.warning("kernels are compiled anew in every process: numba %s, %s", numba.__version__, reason)


def _probe() -> None: ...
