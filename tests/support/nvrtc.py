"""NVRTC of the pip package, for compiling where there is no GPU."""

import ctypes
import hashlib
import re
from functools import cache
from pathlib import Path

import pytest
from long_form import LONG

import dflash.kernels
from dflash.kernels.gpu import cubin
from dflash.kernels.gpu.cubin import OPTIONS, compile_without_spills, may_spill, spilled_bytes
from dflash.kernels.gpu.jit import macros, source

KERNELS = Path(dflash.kernels.__file__).parent

GENERATIONS = 80, 90, 120
"""One architecture per instruction set, of which sources make two kinds of code: before Hopper, and since then."""

ARCHITECTURES = (80, 86, 89, 90, 100, 120) if LONG else GENERATIONS

JUDGED = {(13, minor) for minor in range(6)}
"""Versions of NVRTC whose spills, warnings and choices of operations are faults of the sources: all tests pass with these.

Others were not tried.
"""

_CONTRACTIBLE = re.compile(
    r"^\s*(?:@!?%\w+ )?((?:add|sub|mul|mad)(?!(?:\.\w+)*\.r[nzmp]\b)(?:\.\w+)*\.b?f\d\w*)\s", re.MULTILINE
)
"""PTX of a sum or a product without a rounding mode. ptxas may join two of them to one operation, with other bits."""


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
    """Compile a file below ``dflash/kernels`` as `cubin` does, without a warning; return the bytes of register spills.

    No bits may depend on the compilation. The test is skipped if a version of the compiler that is not `JUDGED` spills,
    warns, or leaves ptxas a choice.
    """
    log = _log(source(KERNELS / path), arch, macros(constants))
    expect("warning" not in log, log)
    expect("are serialized" not in log, f"multiplies of a warpgroup wait for each other: {log}")
    assert "bytes spill" in log, f"no word of spills in the compiler's log: {log!r}"
    spilled = spilled_bytes(log)
    if version() not in JUDGED:
        expect(not spilled, f"it spills {spilled} bytes of {path}")
    return spilled


def expect(sound, complaint):
    """Fail with a complaint about what the compiler made, or skip the test if its version is not `JUDGED`."""
    if not sound and version() not in JUDGED:
        pytest.skip(f"NVRTC {version()} is not among those that are judged; {complaint}")
    assert sound, complaint


def version():
    """Return the compiler's version, such as (13, 5)."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    assert LIBRARY.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0
    return major.value, minor.value


def contractible(ptx):
    """Return the instructions of PTX that ptxas may join to others, so that bits depend on the compilation."""
    return sorted({match[1] for match in _CONTRACTIBLE.finditer(ptx)})


def _log(text, arch, options):
    """Return the log of the best compilation of a source. Only good verdicts are cached, for each compiler."""
    made_from = "\0".join((text, str(arch), *OPTIONS, *options, _compiler()))
    name = hashlib.sha256(made_from.encode()).hexdigest()[:40]
    logs = cubin.code_cache(cubin.folder().with_name("nvrtc-logs"))
    log = logs.get(name)
    if log is not None:
        return log.decode()
    _, log = compile_without_spills(text, lambda more: _sound(text, arch, (*options, *more)))
    if may_spill(text) or not spilled_bytes(log):
        logs.put(name, log.encode())
    return log


def _sound(text, arch, options):
    """Compile; check that the machine code is there and that its PTX leaves ptxas no choice of bits."""
    code, log, ptx = compile_cubin(LIBRARY, text, arch, options)
    assert code.startswith(b"\x7fELF")
    expect(not contractible(ptx), f"ptxas may contract {contractible(ptx)}")
    return code, log


@cache
def _compiler():
    """Return a digest of the compiler."""
    with Path(LIBRARY._name).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compile_cubin(nvrtc, text, arch, options=()):
    """Compile; return the cubin, the log, which has ptxas' numbers of registers and spills, and the PTX."""
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None) == 0
    flags = [f"--gpu-architecture=sm_{arch}", "--ptxas-options=-v", *OPTIONS, *options]
    array = (ctypes.c_char_p * len(flags))(*[flag.encode() for flag in flags])
    failed = nvrtc.nvrtcCompileProgram(program, len(flags), array)
    log = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).rstrip(b"\0").decode()
    assert not failed, log
    code = _read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    ptx = _read(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).rstrip(b"\0").decode()
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code, log, ptx


def _read(size_of, read, program):
    size = ctypes.c_size_t()
    assert size_of(program, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value)
    assert read(program, buffer) == 0
    return buffer.raw
