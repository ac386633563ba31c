"""CUDA graphs of a pass: captured once for each size, then replayed."""

from collections.abc import Callable, Hashable
from types import MethodType
from typing import Any
from weakref import WeakMethod

from dflash.kernels.gpu import device
from dflash.kernels.gpu.launch import each_is_waited_for


class Graphs:
    """Captured graphs of one pass, by size.

    launch: launches the pass for a size on the current stream. A method is held by a weak reference: the pass holds this
        object, and a cycle would delay the release of device memory until the garbage collector runs.
    clear: sets the pass to zero rows, so that its launches change nothing; held like `launch`.
    wanted: whether launches are captured; if False, each call launches the kernels one by one.
    launches: number of kernels and copies in the graph of each captured size.
    """

    def __init__(self, launch: Callable[[Any], None], clear: Callable[[], None]) -> None:
        self._launch, self._clear = _weak(launch), _weak(clear)
        self._graphs: dict[Any, Any] = {}
        self.launches: dict[Any, int] = {}
        self.wanted = not each_is_waited_for()
        self._stream = device.new_stream()

    def prepare(self, size: Hashable) -> None:
        """Capture the graph of a size unless it exists; call this before the inputs of the pass are uploaded.

        A pass of zero rows runs first, so that a launch that fails raises outside of the capture.
        """
        if size in self:
            return
        self._clear()()
        self._launch()(size)
        device.synchronize()
        self.capture(size)

    def __contains__(self, size: Hashable) -> bool:
        return size in self._graphs or not self.wanted

    def capture(self, size: Hashable) -> None:
        """Capture the graph of a size, whose launches have all run once before."""
        launch = self._launch()
        self._graphs[size] = device.captured(lambda: launch(size), self._stream)
        self.launches[size] = device.launches(self._graphs[size])

    def __call__(self, size: Hashable) -> None:
        """Replay the graph of a size, or launch its kernels if nothing is captured."""
        if self.wanted:
            self._graphs[size].launch(device.current_stream())
        else:
            self._launch()(size)


def _weak(function: Callable[..., None]) -> Callable[[], Any]:
    return WeakMethod(function) if isinstance(function, MethodType) else lambda: function
