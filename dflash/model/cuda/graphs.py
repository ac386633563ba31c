"""Launches captured once for each size, then replayed."""

import os
from collections.abc import Callable
from typing import Any

from dflash.kernels import device

GRAPHS_WANTED = os.environ.get("DFLASH_DEBUG_SYNC") != "1"


class Graphs:
    """A pass that is laid out for some sizes.

    Parameters
    ----------
    launch : callable
        Launches the pass for a size on the current stream.
    clear : callable
        Makes the pass one without rows, which changes nothing.
    """

    def __init__(self, launch: Callable[[int], None], clear: Callable[[], None]) -> None:
        self._launch, self._clear = launch, clear
        self._graphs: dict[int, Any] = {}
        self._stream = device.new_stream()

    def prepare(self, size: int) -> None:
        """Capture a size, if that was not done before: to be called before its inputs are laid out."""
        if size in self._graphs or not GRAPHS_WANTED:
            return
        self._clear()
        self._launch(size)
        device.synchronize()
        self._graphs[size] = device.captured(lambda: self._launch(size), self._stream)

    def __call__(self, size: int) -> None:
        """Run."""
        if GRAPHS_WANTED:
            self._graphs[size].launch(device.current_stream())
        else:
            self._launch(size)

    def launches(self, size: int) -> int:
        """Kernels and copies of a size that was captured."""
        return device.launches(self._graphs[size])
