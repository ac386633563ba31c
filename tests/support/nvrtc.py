"""NVRTC of the pip package, for compiling where there is no GPU."""

import ctypes
import hashlib
import re
from functools import cache
from pathlib import Path

import pytest

import dflash.kernels
from dflash.kernels.gpu import cubin
from dflash.kernels.gpu.cubin import OPTIONS
from dflash.kernels.gpu.jit import macros, source

KERNELS = Path(dflash.kernels.__file__).parent
ARCHITECTURES = 80, 86, 89, 90, 100, 120
GENERATIONS = 80, 90, 120
"""Architectures for slow compilations that do not depend on one: one per instruction set."""


def load():
    """The library, or None where it isn't installed."""
    try:
        import nvidia
    except ImportError:
        return None
    found = [path for root in nvidia.__path__ for path in Path(root).glob("*/lib/libnvrtc.so.1?")]
    return ctypes.CDLL(str(found[0])) if found else None


LIBRARY = load()
needed = pytest.mark.skipif(LIBRARY is None, reason="the package nvidia-cuda-nvrtc isn't installed")
"""For ``pytestmark``."""


def compiled(path, arch=90, **constants):
    """Compile a file below ``dflash/kernels`` without a warning; return the bytes of register spills."""
    log = _log(source(KERNELS / path), arch, macros(constants))
    assert "warning" not in log, log
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill", log)]
    assert spills, f"no word of spills in the compiler's log: {log!r}"
    return sum(spills)


def _log(text, arch, options):
    """Return the compiler's log for a source that compiles. Logs are cached per compiler version."""
    made_from = "\0".join((text, str(arch), *OPTIONS, *options, _compiler()))
    name = hashlib.sha256(made_from.encode()).hexdigest()[:40]
    logs = cubin.code_cache(cubin.folder().with_name("nvrtc-logs"))
    log = logs.get(name)
    if log is not None:
        return log.decode()
    code, log = compile_cubin(LIBRARY, text, arch, options)
    assert code.startswith(b"\x7fELF")
    logs.put(name, log.encode())
    return log


@cache
def _compiler():
    """Return a digest of the compiler."""
    with Path(LIBRARY._name).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compile_cubin(nvrtc, text, arch, options=()):
    """Compile; return the cubin and the log, which has ptxas' numbers of registers and spills."""
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None) == 0
    flags = [f"--gpu-architecture=sm_{arch}", "--ptxas-options=-v", *OPTIONS, *options]
    array = (ctypes.c_char_p * len(flags))(*[flag.encode() for flag in flags])
    failed = nvrtc.nvrtcCompileProgram(program, len(flags), array)
    log = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).rstrip(b"\0").decode()
    assert not failed, log
    code = _read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code, log


def _read(size_of, read, program):
    size = ctypes.c_size_t()
    assert size_of(program, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value)
    assert read(program, buffer) == 0
    return buffer.raw
