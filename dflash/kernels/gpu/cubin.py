"""CUDA sources to machine code: NVRTC, in the background, and a cache on disk that all processes share.

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
"""Given to NVRTC besides the target and the constants."""


def target(capability: int, supported: tuple[int, ...]) -> str:
    """What to compile for: ``sm_90a`` and the like, or ``compute_`` of a GPU that is newer than the compiler.

    Parameters
    ----------
    capability : int
        Of the device, 89 for 8.9.
    supported : tuple of int
        What the compiler knows.

    Raises
    ------
    KernelError
        If the compiler is for newer GPUs only.

    Notes
    -----
    Hopper alone gets its own instructions (`wgmma`, `setmaxnreg`): code compiled for ``sm_90a`` defines
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
    """`target` of a CUDA device."""
    import cupy
    from cupy.cuda import nvrtc

    return target(int(cupy.cuda.Device(device).compute_capability), tuple(nvrtc.getSupportedArchs()))


@cache
def pool() -> ThreadPoolExecutor:
    """Threads that compile; NVRTC lets go of the interpreter meanwhile."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="nvrtc")


def cubin(text: str, name: str, options: tuple[str, ...], arch: str, *, anew: bool = False) -> bytes:
    """Compile, or fetch what was compiled before.

    Parameters
    ----------
    text : str
        The source, without includes.
    name : str
        What messages call it.
    options : tuple of str
        Constants.
    arch : str
        As `target` names it.
    anew : bool
        Whether to compile even if the cache has it, because the driver refused what was there.

    Returns
    -------
    bytes
        A cubin, or PTX if `arch` begins with ``compute``.

    Raises
    ------
    KernelError
        If it does not compile; the message is the compiler's.
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
    """Where cubins are kept."""
    return cache_folder("CUPY_CACHE_DIR", "cubins")


@cache
def code_cache(where: Path) -> CodeCache:
    """The cache in a folder."""
    return CodeCache(where, siblings="cubin")  # of versions that wrote no checksums
