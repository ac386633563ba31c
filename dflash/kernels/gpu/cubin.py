"""Compile CUDA sources with NVRTC in background threads, with a cache on disk that all processes share.

The cache is a folder ``cubins`` in ``$CUPY_CACHE_DIR/dflash`` if that variable is set, else in ``$XDG_CACHE_HOME/dflash``,
else in ``~/.cache/dflash``. A file's name is the hash of what it was made from: the source with its includes, the options,
the target and the compiler's version. `code_cache` checks each file and removes what was not used for 30 days.
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from dflash.errors import KernelError
from dflash.kernels.code_cache import CodeCache
from dflash.kernels.code_folder import cache_folder

OPTIONS = ("-std=c++17", "--ftz=true", "--device-as-default-execution-space")
"""NVRTC options, besides the target and the constants."""


def target(capability: int, supported: tuple[int, ...]) -> str:
    """Return the architecture to compile for: ``sm_90a`` and the like, or ``compute_`` for a GPU newer than the compiler.

    Parameters
    ----------
    capability : int
        Compute capability of the device, such as 89 for 8.9.
    supported : tuple of int
        Compute capabilities that the compiler supports.

    Raises
    ------
    KernelError
        If the compiler supports only newer GPUs.

    Notes
    -----
    Only Hopper has an architecture-specific target, for `wgmma` and `setmaxnreg`: code compiled for ``sm_90a`` defines
    ``__CUDA_ARCH_FEAT_SM90_ALL`` and runs on no other chip.
    """
    older = [n for n in supported if n <= capability]
    if not older:
        raise KernelError(f"this CUDA compiles for capability {min(supported)} and newer; the GPU has {capability}")
    if capability == 90 and 90 in older:
        return "sm_90a"
    return f"{'sm' if max(older) // 10 == capability // 10 else 'compute'}_{max(older)}"


@cache
def device_target(device: int) -> str:
    """Return the `target` of a CUDA device."""
    import cupy
    from cupy.cuda import nvrtc

    return target(int(cupy.cuda.Device(device).compute_capability), tuple(nvrtc.getSupportedArchs()))


@cache
def pool() -> ThreadPoolExecutor:
    """Return the pool of compiler threads; NVRTC releases the interpreter lock while it compiles."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="nvrtc")


def cubin(text: str, name: str, options: tuple[str, ...], arch: str, *, anew: bool = False) -> bytes:
    """Return the machine code of a source, from the cache or newly compiled.

    Parameters
    ----------
    text : str
        The source, with its includes pasted in.
    name : str
        Name of the source, for messages.
    options : tuple of str
        Compiler options that define constants.
    arch : str
        Result of `target`.
    anew : bool
        Compile even if the cache has an entry, because the driver could not load it.

    Returns
    -------
    bytes
        A cubin, or PTX if `arch` begins with ``compute``.

    Raises
    ------
    KernelError
        If the source does not compile; the message holds the compiler's log.
    """
    from cupy.cuda import nvrtc

    options = (f"--gpu-architecture={arch}", *OPTIONS, *options)
    made_from = "\0".join((text, *options, repr(nvrtc.getVersion())))
    entry = f"{hashlib.sha256(made_from.encode()).hexdigest()[:40]}.cubin"
    kept = code_cache(folder())
    if anew:
        kept.discard(entry, f"{name} can't be loaded by the driver")
    else:
        code = kept.get(entry)
        if code:
            return code
    code = _compile(text, name, options, ptx=arch.startswith("compute"))
    kept.put(entry, code)
    return code


def _compile(text: str, name: str, options: tuple[str, ...], *, ptx: bool) -> bytes:
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(text, name, (), ())
    try:
        nvrtc.compileProgram(program, options)
        return nvrtc.getPTX(program) if ptx else nvrtc.getCUBIN(program)
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program).strip() or str(error)
        raise KernelError(f"{name} with {' '.join(options)} does not compile:\n{log}") from error
    finally:
        nvrtc.destroyProgram(program)


def folder() -> Path:
    """Return the folder of cached cubins."""
    return cache_folder("CUPY_CACHE_DIR", "cubins")


@cache
def code_cache(where: Path) -> CodeCache:
    """Return the cache in a folder."""
    return CodeCache(where, siblings="cubin")  # of versions that wrote no checksums
