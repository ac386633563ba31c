"""Launch compiled kernels: arguments are checked and laid out once, then a launch costs one call of the driver."""

import ctypes
import os
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from dflash.errors import KernelError
from dflash.kernels.gpu import driver
from dflash.kernels.gpu.signature import Parameter

Size = int | tuple[int, ...]

_SHARED_FOR_ALL = 32 * 1024  # of 48 KiB, which what a kernel declares counts towards, too


def each_is_waited_for() -> bool:
    """Whether ``DFLASH_DEBUG_SYNC=1`` asks for launches that are waited for one by one."""
    return os.environ.get("DFLASH_DEBUG_SYNC") == "1"


class Kernel:
    """An entry point on a device, which may still be compiling.

    Parameters
    ----------
    where : str
        What messages call it.
    entry : str
        Its name in the module.
    expected : tuple of Parameter
        Its signature.
    module : Future
        The loaded module, sooner or later.
    device : int
    dependent : bool
        Whether launches carry the attribute of programmatic dependent launch.

    Raises
    ------
    KernelError
        From a launch, for arguments that do not fit and for what the driver refuses. A fault on the device shows at some
        later launch; with ``DFLASH_DEBUG_SYNC=1`` each launch is waited for, unless it is being captured, and named.
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
    ) -> None:
        self.where, self.expected, self.device, self.dependent = where, expected, device, dependent
        self._entry, self._module = entry, module
        self._function, self._shared = 0, _SHARED_FOR_ALL

    def bind(self, grid: Size, block: Size, args: Sequence[Any], shared: int = 0) -> "Bound":
        """Check and lay out the arguments of many launches.

        Parameters
        ----------
        grid, block : int or tuple of int
        args : sequence
            Arrays and numbers, in the order of the C signature; the arrays are kept alive.
        shared : int
            Bytes of dynamic shared memory.
        """
        return Bound(self, grid, block, args, shared)

    def __call__(self, grid: Size, block: Size, args: Sequence[Any], shared: int = 0, stream: Any = None) -> None:
        """Launch once."""
        Bound(self, grid, block, args, shared)(stream)

    def load(self, shared: int = 0) -> ctypes.c_void_p:
        """Wait for the compiler; the function, which may then have `shared` bytes of dynamic shared memory."""
        if not self._function:
            self._function = self._module.result().get_function(self._entry).ptr
            driver.load_now(self._function)
        if shared > self._shared:
            driver.allow_shared(self._function, shared, f"{self.where}: {shared} bytes of shared memory")
            self._shared = shared
        return ctypes.c_void_p(self._function)


class Bound:
    """A kernel with its arguments; called, it is launched. Not for several threads at once."""

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

    def __call__(self, stream: Any = None, *, grid: Size | None = None, **numbers: float) -> None:
        """Launch on a CuPy stream, or the current one.

        Parameters
        ----------
        stream : cupy.cuda.Stream, optional
        grid : int or tuple of int, optional
            Another grid, from now on.
        **numbers
            Other values of parameters that are numbers, from now on.
        """
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

        if driver.is_no_context(code):  # the first call of this thread
            cupy.cuda.Device(self._kernel.device).use()
            code = self._launch(self._at_config, self._function, self._arguments, None)
        driver.check(code, self._kernel.where)
        stream = self._config.stream or 0
        if self._waits and not cupy.cuda.runtime.streamIsCapturing(stream):
            try:
                cupy.cuda.runtime.streamSynchronize(stream)
            except cupy.cuda.runtime.CUDARuntimeError as error:
                raise KernelError(f"{self._kernel.where}: {error}") from error


def _size(of: Size) -> tuple[int, ...]:
    return of if isinstance(of, tuple) else (of,)
