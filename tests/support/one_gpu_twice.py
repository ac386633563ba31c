"""One GPU in the place of two: a tensor split whose parts run at the same time, each in a stream of its own.

Kernels of one part wait for those of the other, so kernels of both must be resident. `few_blocks` limits what one part
occupies: launch shapes are those of a small GPU, and large launches and some small ones wait for the end of the launches
before them. Else a part could fill the GPU with launches that wait for the other part.
"""

import itertools
import math

from dflash.kernels.gpu import capabilities, device, driver
from dflash.kernels.gpu.devices import Devices

PROCESSORS = 16
"""Multiprocessors that launch shapes are made for."""

_MOST_BLOCKS = 24  # of a launch that may start early; four of them leave a part of an H200 free
_EVERY = 4  # each fourth launch waits for the end of the one before it


class TwoRanks(Devices):
    """The current GPU as the two GPUs of a split.

    The streams wait for the null stream and the null stream for them, as CUDA does for streams that are not made
    non-blocking; the beginning and the end of a pass do so explicitly, too.
    """

    def __init__(self, numbers=(0, 0), *, direct=True):
        import cupy

        super().__init__((0, 0), direct=direct)
        self._ranks = [_Rank(cupy.cuda.Stream()) for _ in range(2)]
        self._outside = cupy.cuda.Event(disable_timing=True)

    def __getitem__(self, i):
        return self._ranks[i]

    def wait(self, i, for_):
        super().wait(i, for_)
        if i == 0:
            with self[0]:
                self._done[0].record(device.current_stream())
            device.current_stream().wait_event(self._done[0])

    def send(self, source, target, pairs):
        self._outside.record(device.current_stream())
        with self[source]:
            device.current_stream().wait_event(self._outside)
            for array, to in pairs:
                device.copy(to, array)
        self.wait(target, source)


class _Rank:
    """Context in which a stream of GPU 0 is the current one."""

    def __init__(self, stream):
        self._stream = stream

    def __enter__(self):
        return self._stream.__enter__()

    def __exit__(self, *error):
        self._stream.__exit__(*error)


def few_blocks(monkeypatch, *, overlapping):
    """Let the launches of two parts fit a large GPU together; with `overlapping` some of them start early."""
    about, config, numbers = capabilities._capabilities, driver.config, itertools.count()
    monkeypatch.setattr(capabilities, "_capabilities", lambda *key: about(*key)._replace(processors=PROCESSORS))

    def limited(grid, block, shared, *, dependent):
        early = overlapping and math.prod(grid) <= _MOST_BLOCKS and next(numbers) % _EVERY > 0
        return config(grid, block, shared, dependent=dependent and early)

    monkeypatch.setattr(driver, "config", limited)
