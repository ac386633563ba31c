"""Compile the CUDA sources in the op folders; `launch.py` launches them."""

import functools
import re
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from dflash.errors import KernelError
from dflash.kernels.compiling import add
from dflash.kernels.gpu.capabilities import Capabilities, capabilities
from dflash.kernels.gpu.cubin import cubin, is_missing, pool, ptx_for
from dflash.kernels.gpu.launch import Kernel
from dflash.kernels.gpu.signature import parameters

_INCLUDE = re.compile(r'^[ \t]*#include[ \t]+"([^"]+)"[ \t]*$', re.MULTILINE)

_NOT_OF_THE_CODE = 2, 46, 100, 101, 201
"""Driver errors that recompiling does not fix: no memory, device busy, no or wrong device, no context."""

_DEVICE_IS_LOST = range(700, 800)

_asked: list[Kernel] = []


def source(path: Path) -> str:
    """Return a source with its includes pasted in, each once; ``#line`` keeps the line numbers of the files.

    Returns: source for NVRTC, which needs no include path.
    """
    return _paste(path, set())


def _paste(path: Path, seen: set[Path]) -> str:
    seen.add(path)
    text = path.read_text(encoding="utf-8")

    def replace(match: re.Match[str]) -> str:
        # an op outside the package has no shared headers beside it
        places = path.parent / match[1], Path(__file__).parent / match[1]
        inner = next(filter(Path.is_file, places), places[0]).resolve()
        after = text.count("\n", 0, match.start()) + 2
        pasted = "" if inner in seen else _paste(inner, seen)
        return f'{pasted}\n#line {after} "{path.name}"'

    return f'#line 1 "{path.name}"\n' + _INCLUDE.sub(replace, text)


def macros(constants: dict[str, Any]) -> tuple[str, ...]:
    """Return compiler options that define `constants`."""
    return tuple(f"-D{name}={value}" for name, value in sorted(constants.items()))


def kernel(path: Path, entry: str, *, dependent: bool = False, **constants: Any) -> Kernel:
    """Return an entry point for the current device, and start to compile it in the background.

    entry: name of the ``extern "C" __global__`` function.
    dependent: launches may start while the previous kernel of the stream still runs (programmatic dependent launch). The
        source must then call `wait_on_dependent_grids` (`gpu/include/pdl.cuh`).
    **constants: macros: values that are fixed for a model.
    Returns: can be bound to arguments immediately; its first launch waits for the compiler.
    Raises KernelError if the source has no such function. A compile error is raised by the first launch or by `warm`; its
        message names file and line.
    """
    import cupy

    device = cupy.cuda.Device().id
    return _kernel(path, entry, dependent, macros(constants), device, capabilities(device))


@functools.cache
def _kernel(path: Path, entry: str, dependent: bool, options: tuple[str, ...], device: int, about: Capabilities) -> Kernel:
    text, module = _module(path, options, device, about.code)
    where = f"{entry} in {path.name}"
    if dependent and not re.search(r"\bwait_on_dependent_grids\(\);", text):
        raise KernelError(f"{where}: launched as dependent, but it never waits for its inputs")
    dependent = dependent and about.has_dependent_launches
    made = Kernel(where, entry, parameters(text, entry), module, device, dependent=dependent, most_shared=about.block_shared)
    _asked.append(made)
    return made


@functools.cache
def _module(path: Path, options: tuple[str, ...], device: int, arch: str) -> tuple[str, Future[Any]]:
    text = source(path)
    missing = int(is_missing(text, options, arch))
    add(waiting=missing)

    def load() -> Any:
        try:
            return loaded()
        finally:
            add(done=missing, waiting=-missing)

    def loaded() -> Any:
        import cupy

        def code(*, anew: bool = False) -> bytes:
            made = cubin(text, path.name, options, arch, anew=anew)
            return ptx_for(cupy.cuda.runtime.driverGetVersion(), made) if arch.startswith("compute") else made

        with cupy.cuda.Device(device):
            module = cupy.cuda.function.Module()
            try:
                module.load(code())
            except cupy.cuda.driver.CUDADriverError as error:
                if error.status in _NOT_OF_THE_CODE or error.status in _DEVICE_IS_LOST:
                    raise
                module.load(code(anew=True))
        return module

    return text, pool().submit(load)


def warm() -> None:
    """Wait until every requested kernel is compiled and loaded; call it before a graph is captured.

    Raises KernelError if a kernel does not compile; the message names file and line.
    """
    while True:
        try:
            made = _asked.pop()
        except IndexError:  # a draft may be loaded in another thread at the same time
            return
        made.load()
