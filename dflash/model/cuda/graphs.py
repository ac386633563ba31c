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

    Attributes
    ----------
    wanted : bool
        Whether launches are captured; they are made one by one if not.
    launches : dict
        Kernels and copies of each size that was captured.
    """

    def __init__(self, launch: Callable[[Any], None], clear: Callable[[], None]) -> None:
        self._launch, self._clear = launch, clear
        self._graphs: dict[Any, Any] = {}
        self.launches: dict[Any, int] = {}
        self.wanted = not each_is_waited_for()
        self._stream = device.new_stream()

    def prepare(self, size: Hashable) -> None:
        """Capture a size, if that was not done before: to be called before its inputs are laid out.

        A pass without rows comes first, and shows that its launches are sound.
        """
        if size in self._graphs or not self.wanted:
            return
        self._clear()
        self._launch(size)
        device.synchronize()
        self._graphs[size] = device.captured(lambda: self._launch(size), self._stream)
        self.launches[size] = device.launches(self._graphs[size])

    def __call__(self, size: Hashable) -> None:
        """Run."""
        if self.wanted:
            self._graphs[size].launch(device.current_stream())
        else:
            self._launch(size)
