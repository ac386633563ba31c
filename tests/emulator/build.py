"""Compile with g++: the emulator itself, and kernels for it."""

import hashlib
import os
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from threading import Lock

from dflash.kernels.compile_cache.folder import cache_folder
from dflash.kernels.gpu.cubin import code_cache
from emulator import translate

HERE = Path(__file__).parent
FOLDER = cache_folder("CUPY_CACHE_DIR", "emulator")
HEADERS = "tensor_cores.h"
"""Header that every kernel includes first."""
_KERNEL = ("-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-fno-gnu-unique", "-mavx2", "-mf16c", "-mfma")
_KERNEL_MEANING = ("-ffp-contract=off", "-fno-strict-aliasing", "-fwrapv", "-fpermissive")
_LOCK = Lock()
_RUNTIME = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-Wl,-soname,libcuda.so.1")


class CompileError(Exception):
    """g++ rejects a source; the message is its log."""


@cache
def version():
    """Hash of all that the code of a kernel depends on beside its source."""
    files = [*sorted((HERE / "include").iterdir()), HERE / "build.py", HERE / "translate.py", HERE / "ptx.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def runtime():
    """Return the path of the emulator's libcuda.so.1 in the folder of cached builds."""
    sources = sorted(HERE.glob("*.cpp"))
    inputs = [*sources, HERE / "runtime.h", HERE / "include" / "thread.h", HERE / "build.py"]
    name = hashlib.sha256(b"".join(file.read_bytes() for file in inputs)).hexdigest()[:20]
    path = FOLDER / f"libcuda-{name}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(f".{os.getpid()}")
        _run(["g++", *_RUNTIME, *sources, "-o", made, "-ldl"])
        made.replace(path)
    return path


def headers():
    """Return the folder of the precompiled `HEADERS`, which would else take most of a kernel's compile time."""
    place = FOLDER / f"headers-{version()[:20]}"
    path = place / f"{HEADERS}.gch"
    with _LOCK:
        if not path.exists():
            place.mkdir(parents=True, exist_ok=True)
            made = path.with_suffix(f".{os.getpid()}")
            _run(["g++", *_KERNEL, *_KERNEL_MEANING, "-x", "c++-header", HERE / "include" / HEADERS, "-o", made])
            made.replace(path)
    return place


def kernel(text, name, options):
    """Compile a CUDA source, or read from the cache what another process has compiled.

    Parameters
    ----------
    text : str
        Source with its includes pasted in.
    name : str
        Name of its file, for messages.
    options : list of str
        Options of NVRTC, of which macros and the architecture count.

    Returns
    -------
    bytes
        A shared library.

    Raises
    ------
    CompileError
        With the compiler's messages.
    UnknownPTX
        If the source has inline PTX that the emulator does not know.
    """
    entry = hashlib.sha256("\0".join((text, version(), *options)).encode()).hexdigest()[:40]
    cache = code_cache(FOLDER)
    code = cache.get(entry)
    if code is None:
        code = _compiled(text, name, options)
        cache.put(entry, code)
    return code


def _compiled(text, name, options):
    architecture = next(option for option in options if option.startswith("--gpu-architecture"))
    macros = [option for option in options if option.startswith("-D")]
    macros.append(f"-D__CUDA_ARCH__={re.search('[0-9]+', architecture)[0]}0")
    if architecture.endswith("sm_90a"):
        macros.append("-D__CUDA_ARCH_FEAT_SM90_ALL=1")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, name).with_suffix(".cpp"), Path(folder, "kernel.so")
        source.write_text(text)
        source.write_text(translate.to_cpp(_run(["g++", "-std=c++17", "-E", "-w", *translate.MACROS, *macros, source])))
        _run(["g++", *_KERNEL, *_KERNEL_MEANING, f"-I{headers()}", f"-I{HERE / 'include'}", source, "-o", library])
        return library.read_bytes()


def _run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(done.stderr)
    return done.stdout
