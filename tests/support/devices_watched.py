"""Checks of every launch: the GPU of its kernel or graph is current, and holds all arrays that it gets."""

from dflash.kernels.gpu.launch import Bound
from dflash.model.cuda.graphs import Graphs


def watch(monkeypatch):
    """Count the launches of each GPU in the dict that is returned; a launch on a wrong GPU fails."""
    import cupy

    counts, bind, launch, graphs, replay = {}, Bound.__init__, Bound.__call__, Graphs.__init__, Graphs.__call__

    def bound(self, kernel, grid, block, args, shared):
        places = {arg.device.id for arg in args if isinstance(arg, cupy.ndarray)}
        assert places <= {kernel.device}, f"{kernel.where} of GPU {kernel.device} gets arrays of GPUs {places}"
        self.gpu = kernel.device
        bind(self, kernel, grid, block, args, shared)

    def launched(self, *args, **numbers):
        if hasattr(self, "gpu"):
            assert cupy.cuda.Device().id == self.gpu, f"{self._kernel.where} is launched on another GPU"
            counts[self.gpu] = counts.get(self.gpu, 0) + 1
        launch(self, *args, **numbers)

    def made(self, *args):
        self.gpu = cupy.cuda.Device().id
        graphs(self, *args)

    def replayed(self, size):
        assert cupy.cuda.Device().id == getattr(self, "gpu", 0), "a graph is launched on another GPU"
        replay(self, size)

    for owner, name, replaced in (
        (Bound, "__init__", bound),
        (Bound, "__call__", launched),
        (Graphs, "__init__", made),
        (Graphs, "__call__", replayed),
    ):
        monkeypatch.setattr(owner, name, replaced)
    return counts
