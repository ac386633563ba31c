"""Launch compiled kernels: arguments are checked and packed once, then a launch costs one driver call."""

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from dflash.errors import KernelError
from dflash.kernels.arrays import Stream
from dflash.kernels.gpu import driver
from dflash.kernels.gpu.signature import Parameter

Size = int | tuple[int, ...]

_SHARED_FOR_ALL = 32 * 1024  # bytes; static shared memory counts towards the default limit of 48 KiB, too


def each_is_waited_for() -> bool:
    """Return whether ``DFLASH_DEBUG_SYNC=1`` requests synchronisation after every launch."""
    return os.environ.get("DFLASH_DEBUG_SYNC") == "1"


class Kernel:
    """An entry point on a device; it may still be compiling.

    entry: name of the function in the module.
    dependent: launch with the attribute of programmatic dependent launch.
    most_shared: bytes of shared memory that a block may use, if fewer than the device has.
    """

    def __init__(
        self,
        where: str,
        entry: str,
        expected: tuple[Parameter, ...],
        module: Future[Any],
        device: int,
        *,
        dependent: bool = False,
        most_shared: int | None = None,
    ) -> None:
        self.where, self.expected, self.device, self.dependent = where, expected, device, dependent
        self._most_shared, self._max_carveout = most_shared, False
        self._entry, self._module = entry, module
        self._function, self._shared = 0, _SHARED_FOR_ALL

    def with_max_carveout(self) -> "Kernel":
        """Prefer the largest carve-out of shared memory from the first launch on; return the kernel.

        Blocks of a kernel that prefers another one do not start on a multiprocessor while its predecessor's run there.
        """
        self._max_carveout = True
        return self

    def bind(self, grid: Size, block: Size, args: Sequence[Any], shared: int = 0) -> "Bound":
        """Check and pack the arguments for repeated launches. shared: bytes of dynamic shared memory."""
        return Bound(self, grid, block, args, shared)

    def __call__(self, grid: Size, block: Size, args: Sequence[Any], shared: int = 0, stream: Stream = None) -> None:
        """Bind the arguments and launch once."""
        Bound(self, grid, block, args, shared)(stream)

    def load(self, shared: int = 0) -> ctypes.c_void_p:
        """Wait for the compiler and return the function, allowed `shared` bytes of dynamic shared memory."""
        import cupy

        if self._function and shared <= self._shared:
            return ctypes.c_void_p(self._function)
        with cupy.cuda.Device(self.device):
            if not self._function:
                self._function = self._module.result().get_function(self._entry).ptr
                driver.load_now(self._function)
                if self._max_carveout:
                    driver.prefer_max_carveout(self._function)
            if shared > self._shared:
                self._check_shared(shared)
                driver.allow_shared(self._function, shared, f"{self.where}: {shared} bytes of shared memory")
                self._shared = shared
        return ctypes.c_void_p(self._function)

    def _check_shared(self, shared: int) -> None:
        """Refuse more shared memory than the target has, which may be less than that of the device."""
        if self._most_shared is not None and (used := shared + driver.static_shared(self._function)) > self._most_shared:
            raise KernelError(f"{self.where}: {used} bytes of shared memory of a block, the target has {self._most_shared}")


class Bound:
    """A kernel with its arguments; a call launches it. Use from one thread at a time."""

    def __init__(self, kernel: Kernel, grid: Size, block: Size, args: Sequence[Any], shared: int) -> None:
        import cupy

        expected, where = kernel.expected, kernel.where
        if len(args) != len(expected):
            raise KernelError(f"{where}: takes {len(expected)} arguments, got {len(args)}")
        self._kernel, self._shared, self._kept = kernel, shared, args
        self._cells = {p.name: p.cell(a, where) for p, a in zip(expected, args, strict=True)}
        addresses = [ctypes.addressof(cell) for cell in self._cells.values()]
        self._arguments = (ctypes.c_void_p * len(addresses))(*addresses)
        self._config = driver.config(_size(grid), _size(block), shared, dependent=kernel.dependent)
        self._at_config = ctypes.byref(self._config)
        self._launch = driver.library().cuLaunchKernelEx
        self._function: ctypes.c_void_p | None = None
        self._current = cupy.cuda.get_current_stream
        self._waits = each_is_waited_for()

    def __call__(self, stream: Stream = None, *, grid: Size | None = None, **numbers: float) -> None:
        """Launch on a CuPy stream, or the current one."""
        if grid is not None:
            self._config.grid[:] = (*_size(grid), 1, 1)[:3]
        for name, value in numbers.items():
            self._cells[name].value = value
        if self._function is None:
            self._function = self._kernel.load(self._shared)
        self._config.stream = (stream or self._current()).ptr
        code = self._launch(self._at_config, self._function, self._arguments, None)
        if code or self._waits:
            self._check(code)

    def _check(self, code: int) -> None:
        import cupy

        if driver.is_no_context(code):  # first launch from this thread
            cupy.cuda.Device(self._kernel.device).use()
            code = self._launch(self._at_config, self._function, self._arguments, None)
        of = self._config
        driver.check(code, f"{self._kernel.where}, grid {tuple(of.grid)}, block {tuple(of.block)}, {of.shared} bytes shared")
        stream = self._config.stream or 0
        if self._waits and not cupy.cuda.runtime.streamIsCapturing(stream):
            try:
                cupy.cuda.runtime.streamSynchronize(stream)
            except cupy.cuda.runtime.CUDARuntimeError as error:
                raise KernelError(f"{self._kernel.where}: {error}") from error


class RowLaunch:
    """A kernel bound to fixed arrays that runs for the first rows of them.

    run: launch whose grid ends with the number of rows.
    across: blocks of a row; none if a row has one block.
    most: largest number of rows, if the arrays limit it.
    """

    def __init__(self, run: Bound, *across: int, most: int | None = None) -> None:
        self._run, self._across, self._most = run, across, most

    def __call__(self, n_rows: int, stream: Stream = None) -> None:
        """Run for the first `n_rows` rows; rows beyond the count of a batch are not written."""
        assert self._most is None or 0 < n_rows <= self._most
        self._run(stream, grid=(*self._across, n_rows))


def recorded(steps: Sequence[Callable[[int], object]], n: int) -> list[str]:
    """Return the kernels that steps would launch for `n` rows, without launching them."""
    found = list[str]()

    def record(self: Bound, stream: Stream = None, **about: Any) -> None:
        found.append(self._kernel.where.partition(" ")[0])

    launch = Bound.__call__
    Bound.__call__ = record  # type: ignore[method-assign]
    try:
        for step in steps:
            step(n)
    finally:
        Bound.__call__ = launch  # type: ignore[method-assign]
    return found


def _size(of: Size) -> tuple[int, ...]:
    return of if isinstance(of, tuple) else (of,)
