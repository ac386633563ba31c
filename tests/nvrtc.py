"""NVRTC of the pip package, for compiling where there is no GPU."""

import ctypes
from pathlib import Path

from dflash.kernels.jit import OPTIONS


def load():
    """The library, or None where it isn't installed."""
    try:
        import nvidia
    except ImportError:
        return None
    found = [path for root in nvidia.__path__ for path in Path(root).glob("*/lib/libnvrtc.so.1?")]
    return ctypes.CDLL(str(found[0])) if found else None


def compile_cubin(nvrtc, text, arch, options=()):
    """Compile; the cubin and the compiler's log, which holds what ptxas says about registers and spills."""
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None) == 0
    flags = [f"--gpu-architecture=sm_{arch}", "--ptxas-options=-v", *OPTIONS, *options]
    array = (ctypes.c_char_p * len(flags))(*[flag.encode() for flag in flags])
    failed = nvrtc.nvrtcCompileProgram(program, len(flags), array)
    log = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).rstrip(b"\0").decode()
    assert not failed, log
    cubin = _read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return cubin, log


def _read(size_of, read, program):
    size = ctypes.c_size_t()
    assert size_of(program, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value)
    assert read(program, buffer) == 0
    return buffer.raw
