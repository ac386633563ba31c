"""CUDA sources to machine code: NVRTC, in the background, and a cache on disk that all processes share.

The cache is a folder ``cubin`` in ``$CUPY_CACHE_DIR/dflash`` if that variable is set, else in ``$XDG_CACHE_HOME/dflash``,
else in ``~/.cache/dflash``. A file's name is the hash of what it was made from: the source with its includes, the options,
the target and the compiler's version, so nothing in it is ever wrong, only old; what nobody has used for 30 days is removed.
"""

import hashlib
import logging
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

from dflash.errors import KernelError

OPTIONS = ("-std=c++17", "--ftz=true", "--device-as-default-execution-space")
"""Given to NVRTC besides the target and the constants."""

_KEPT_DAYS = 30
_log = logging.getLogger(__name__)


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


def cubin(text: str, name: str, options: tuple[str, ...], arch: str) -> bytes:
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
    path = folder() / f"{hashlib.sha256(made_from.encode()).hexdigest()[:40]}.cubin"
    with suppress(OSError):
        code = path.read_bytes()
        if code:
            os.utime(path)
            return code
    code = _compile(text, name, options, ptx=arch.startswith("compute"))
    _keep(path, code)
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
    base = os.environ.get("CUPY_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dflash" / "cubin"


def _keep(path: Path, code: bytes) -> None:
    """Write a file that is whole or not there, whoever else writes it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix="new-", delete=False) as file:
            file.write(code)
        Path(file.name).replace(path)
    except OSError as error:
        _warn_once(str(path.parent), str(error))
    _forget_old(path.parent)


@cache
def _warn_once(where: str, error: str) -> None:
    _log.warning("%s can't be written to: CUDA kernels are compiled anew in every process (%s)", where, error)


@cache
def _forget_old(where: Path) -> None:
    with suppress(OSError):
        for path in where.iterdir():
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _KEPT_DAYS * 86400:
                    path.unlink()
