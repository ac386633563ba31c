"""Launches captured once for each size, then replayed."""

from collections.abc import Callable, Hashable
from types import MethodType
from typing import Any
from weakref import WeakMethod

from dflash.kernels.gpu import device
from dflash.kernels.gpu.launch import each_is_waited_for


class Graphs:
    """A pass that is laid out for some sizes.

    Parameters
    ----------
    launch : callable
        Launches the pass for a size on the current stream. A method keeps no hold of its pass, which holds this: memory of
        the device is to be free as soon as nobody wants the pass, not when the collector of cycles comes by.
    clear : callable
        Makes the pass one without rows, which changes nothing; likewise.

    Attributes
    ----------
    wanted : bool
        Whether launches are captured; they are made one by one if not.
    launches : dict
        Kernels and copies of each size that was captured.
    """

    def __init__(self, launch: Callable[[Any], None], clear: Callable[[], None]) -> None:
        self._launch, self._clear = _weak(launch), _weak(clear)
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
        launch = self._launch()
        self._clear()()
        launch(size)
        device.synchronize()
        self._graphs[size] = device.captured(lambda: launch(size), self._stream)
        self.launches[size] = device.launches(self._graphs[size])

    def __call__(self, size: Hashable) -> None:
        """Run."""
        if self.wanted:
            self._graphs[size].launch(device.current_stream())
        else:
            self._launch()(size)


def _weak(function: Callable[..., None]) -> Callable[[], Any]:
    return WeakMethod(function) if isinstance(function, MethodType) else lambda: function
