"""Compile CUDA sources with NVRTC in background threads, with a cache on disk that all processes share.

The cache is a folder ``cubins`` in ``$CUPY_CACHE_DIR/dflash`` if that variable is set, else in ``$XDG_CACHE_HOME/dflash``,
else in ``~/.cache/dflash``. A file's name is the hash of what it was made from: the source with its includes, the options,
the target and the compiler's version. `compile_cache` checks each file and removes what was not used for 30 days.
"""

import hashlib
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from dflash.errors import KernelError
from dflash.kernels.compile_cache.cache import CodeCache
from dflash.kernels.compile_cache.folder import cache_folder

ATTEMPTS = 3
"""Most compilations of a source. One in 115 compilations of a source by NVRTC 13.5 had spills; if three in a row have, the
registers do not suffice."""

FEW_REGISTERS = "-DFEW_REGISTERS"
"""Option of the last of these compilations: with this macro a source holds fewer values at a time, for the same results."""

_MAY_SPILL = re.compile(r"^#define MAY_SPILL\b", re.MULTILINE)


def spilled_bytes(log: str) -> int:
    """Return the bytes of registers that the compiler spilled, from its log with ``--ptxas-options=-v``."""
    return sum(int(n) for n in re.findall(r"(\d+) bytes spill", log))


def may_spill(text: str) -> bool:
    """Return whether a source, with its includes pasted in, defines ``MAY_SPILL``."""
    return _MAY_SPILL.search(text) is not None


def compile_without_spills(text: str, compile_once: Callable[[tuple[str, ...]], tuple[bytes, str]]) -> tuple[bytes, str]:
    """Return code and log of the compilation with the fewest spills: the first without, or the best of `ATTEMPTS`.

    `compile_once` takes more options of the compiler.
    """
    made = [compile_once(())]
    while spilled_bytes(made[-1][1]) and not may_spill(text) and len(made) < ATTEMPTS:
        made.append(compile_once((FEW_REGISTERS,) if len(made) == ATTEMPTS - 1 else ()))
    return min(made, key=lambda each: spilled_bytes(each[1]))


OPTIONS = ("-std=c++17", "--ftz=true", "--fmad=false", "--device-as-default-execution-space")
"""NVRTC options, besides the target and the constants.

NVRTC is not deterministic. With ``--fmad=false`` it rounds each product and each sum; only `__fmaf_rn` of a source is one
operation. So bits depend on the source and the compiler's version, not on which compilation made the code.
"""

_REPORT = "--ptxas-options=-v"
"""Option that writes the bytes of spills into the compiler's log."""

_PTX_OF_CUDA_12 = "8.0", "8.1", "8.2", "8.3", "8.4", "8.5", "8.5", "8.6", "8.7", "8.8"
"""PTX versions of CUDA 12.0 to 12.9. Source: release history in the PTX ISA manual; CUDA 13.x reads PTX 9.x."""


@cache
def pool() -> ThreadPoolExecutor:
    """Return the pool of compiler threads; NVRTC releases the interpreter lock while it compiles."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="nvrtc")


def cubin(text: str, name: str, options: tuple[str, ...], arch: str, *, anew: bool = False) -> bytes:
    """Return the machine code of a source, from the cache or newly compiled.

    anew: compile even if the cache has an entry, because the driver could not load it.
    """
    entry, options = _entry(text, options, arch)
    kept = code_cache(folder())
    if anew:
        kept.discard(entry, f"{name} can't be loaded by the driver")
    else:
        code = kept.get(entry)
        if code:
            return code
    ptx = arch.startswith("compute")
    code, _ = compile_without_spills(text, lambda more: _compile(text, name, (_REPORT, *options, *more), ptx=ptx))
    kept.put(entry, code)
    return code


def is_missing(text: str, options: tuple[str, ...], arch: str) -> bool:
    """Return whether the cache has no machine code of a source; a file that turns out to be damaged is missing later."""
    return not code_cache(folder()).has(_entry(text, options, arch)[0])


def _entry(text: str, options: tuple[str, ...], arch: str) -> tuple[str, tuple[str, ...]]:
    """Return the name in the cache, which covers all that the code is made from, and all options of the compiler."""
    options = (f"--gpu-architecture={arch}", *OPTIONS, *options)
    made_from = "\0".join((text, *options, compiler()))
    return f"{hashlib.sha256(made_from.encode()).hexdigest()[:40]}.cubin", options


def compiler() -> str:
    """Return name and version of the CUDA compiler."""
    from cupy.cuda import nvrtc

    return f"NVRTC {'.'.join(map(str, nvrtc.getVersion()))}"


def _compile(text: str, name: str, options: tuple[str, ...], *, ptx: bool) -> tuple[bytes, str]:
    """Return the code and the compiler's log."""
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(text, name, (), ())
    try:
        nvrtc.compileProgram(program, options)
        code = nvrtc.getPTX(program) if ptx else nvrtc.getCUBIN(program)
        return code, nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program).strip() or str(error)
        raise KernelError(f"{name} with {' '.join(options)} does not compile:\n{log}") from error
    finally:
        nvrtc.destroyProgram(program)


def ptx_for(driver: int, code: bytes) -> bytes:
    """Return PTX that a driver reads: the compiler may be newer than the driver and then states a version unknown to it.

    driver: CUDA version of the driver, such as 13000 for 13.0.
    code: PTX. NVRTC 13.5 makes nothing of the kernels that needs more than PTX 8.3, the version of CUDA 12.3.
    """
    major, minor = divmod(driver // 10, 100)
    reads = f"{major - 4}.{minor}" if major > 12 else _PTX_OF_CUDA_12[min(minor, len(_PTX_OF_CUDA_12) - 1)]
    stated = re.search(rb"^\.version (\d+\.\d+)$", code, re.MULTILINE)
    if stated is None or float(stated[1]) <= float(reads):
        return code
    return code[: stated.start(1)] + reads.encode() + code[stated.end(1) :]


def folder() -> Path:
    """Return the folder of cached cubins."""
    return cache_folder("CUPY_CACHE_DIR", "cubins")


@cache
def code_cache(where: Path) -> CodeCache:
    """Return the cache in a folder."""
    return CodeCache(where, siblings="cubin")  # of versions that wrote no checksums
