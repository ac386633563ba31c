"""Compile the parts of a kernel to LLVM code only; only this module uses private parts of numba's compiler.

numba optimises every function and makes machine code of it, also if only compiled functions call it, and then does both
again in each caller into which it is inlined. Two thirds of a first start went into that. Here the parts of a kernel stay
LLVM code as numba has written it, until they are linked into a function that Python calls: an *entry*. That one is optimised
as a whole, and only it becomes machine code. LLVM may not change the result of an operation, so no bit depends on this.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numba
from numba import types
from numba.core import codegen, compiler

from dflash.kernels.compiling import compiling

_LIBRARY = (
    *("_optimize_final_module", "_finalize_final_module", "_finalize_dynamic_globals"),
    *("_verify_declare_only_symbols", "_ensure_finalized", "get_pointer_to_function", "codegen"),
)


def lacking() -> list[str]:
    """Return the private parts of numba used here that the installed version lacks."""
    probe = numba.njit(_probe)
    made = probe.targetctx.codegen()
    names = [f"JITCodeLibrary.{name}" for name in _LIBRARY if not hasattr(codegen.JITCodeLibrary, name)]
    names += [f"JITCPUCodegen.{name}" for name in ("_library_class", "set_env") if not hasattr(made, name)]
    names += [f"Dispatcher.{name}" for name in ("get_overload", "add_overload", "overloads") if not hasattr(probe, name)]
    if not hasattr(compiler.CompileResult, "_find_referenced_environments"):
        names.append("CompileResult._find_referenced_environments")
    return names


class _WithoutAddresses:
    """A code generator for which no address of a global is set: the code of a part has none."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def set_env(self, name: str, environment: Any) -> None:
        """Do nothing; the entry sets the environments of its parts."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)


class _PartLibrary(codegen.JITCodeLibrary):
    """LLVM code to link into entries: no module passes, and no machine code.

    The cheap passes over each function stay: without them decode of the demo is 6 % slower.
    """

    def _optimize_final_module(self) -> None: ...

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:  # noqa: ARG002 - numba's signature
        """Return 0, which stands for a function that is not defined."""
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> Any:
        """Code generator, as numba asks for it after it has compiled a function."""
        return _WithoutAddresses(self._codegen)


class _PartCompiler(compiler.Compiler):
    """Compiles a function to LLVM code."""

    def __init__(self, typing: Any, target: Any, _: Any, *settings: Any) -> None:
        super().__init__(typing, target, _PartLibrary(target.codegen(), "part"), *settings)
        flags = self.state.flags
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True


class EntryCompiler(compiler.Compiler):
    """Compiles a function that Python or an address calls; all that numba compiles for it on the way is a part of it."""

    def __init__(self, typing: Any, target: Any, _: Any, *settings: Any) -> None:
        self._codegen = target.codegen()
        library = codegen.JITCodeLibrary(self._codegen, "entry")
        library.enable_object_caching()
        super().__init__(typing, target, library, *settings)

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        """Compile a function. Called by numba, which holds its compiler lock."""
        before = self._codegen._library_class
        self._codegen._library_class = _PartLibrary
        try:
            with compiling(), _no_collections():
                result = super().compile_extra(func)
                result.library._ensure_finalized()
        finally:
            self._codegen._library_class = before
        for environment in result._find_referenced_environments():
            self._codegen.set_env(environment.env_name, environment)
        return result


@contextmanager
def _no_collections() -> Iterator[None]:
    """Collect no garbage in a ``with`` block: numba makes objects so fast that a seventh of the time went into that."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Key:
    """Stands for the address of a part: numba looks functions up by their addresses."""


def call_as_part(entry: Any, function: Callable[..., Any], **options: Any) -> None:
    """Let compiled functions that call `entry` link a part instead of it."""
    part: Any = numba.njit(pipeline_class=_PartCompiler, **options)(function)

    def add_overload(result: Any) -> None:
        result = result._replace(entry_point=_Key())
        part.targetctx.insert_user_function(result.entry_point, result.fndesc, [result.library])
        part.overloads[tuple(result.signature.args)] = result

    def get_call_template(args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        return template(tuple(map(_plain, args)), {name: _plain(kind) for name, kind in kws.items()})

    template, part.add_overload = part.get_call_template, add_overload
    entry.get_call_template, entry.get_overload = get_call_template, part.get_overload


def _plain(kind: types.Type) -> types.Type:
    """Generalise a type: otherwise numba recompiles a function for literals and for unsigned `prange` indices."""
    kind = types.unliteral(kind)
    return types.int64 if kind == types.uint64 else kind


def _probe() -> None: ...
