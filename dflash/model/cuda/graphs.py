"""Launches captured once for each size, then replayed."""

from collections.abc import Callable, Hashable
from typing import Any

from dflash.kernels import device
from dflash.kernels.launch import each_is_waited_for


class Graphs:
    """A pass that is laid out for some sizes.

    Parameters
    ----------
    launch : callable
        Launches the pass for a size on the current stream.
    clear : callable
        Makes the pass one without rows, which changes nothing.
    """

    def __init__(self, launch: Callable[[Any], None], clear: Callable[[], None]) -> None:
        self._launch, self._clear = launch, clear
        self._graphs: dict[Hashable, Any] = {}
        self._wanted = not each_is_waited_for()
        self._stream = device.new_stream()

    def prepare(self, size: Hashable) -> None:
        """Capture a size, if that was not done before: to be called before its inputs are laid out."""
        if size in self._graphs or not self._wanted:
            return
        self._clear()
        self._launch(size)
        device.synchronize()
        self._graphs[size] = device.captured(lambda: self._launch(size), self._stream)

    def __call__(self, size: Hashable) -> None:
        """Run."""
        if self._wanted:
            self._graphs[size].launch(device.current_stream())
        else:
            self._launch(size)

    def launches(self, size: Hashable) -> int:
        """Kernels and copies of a size that was captured."""
        return device.launches(self._graphs[size])
