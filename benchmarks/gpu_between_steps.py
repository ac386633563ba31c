"""Microseconds of a plain decode step on a GPU, with what lies between two steps added part by part.

    python benchmarks/gpu_between_steps.py FILE [--layers N]

Steps follow each other on one stream without a wait, as in the engine. Between two graphs lie the search for the largest
logit, the copy of the token to the host, the upload of the next batch and the copy of the token into it: first by the copy
engine, then by launches (`Transfer`), which is what the engine does.
"""

import argparse
from pathlib import Path

import cupy
import numpy as np
from gpu_profile import Step

from dflash.kernels.copy.cuda_transfer import Transfer
from dflash.kernels.gpu import device, jit
from dflash.kernels.sample.cuda import DeviceSampler

STEPS, WARM, TURNS = 32, 4, 7


class Parts:
    """The parts of a step of one row, each a function that launches it."""

    def __init__(self, step):
        self._run, self._key = step.run, step.lay(1)
        self._sampler = DeviceSampler(step.run.logits)
        self._transfer, self._batch = Transfer(), step.run.batch
        words = self._batch.uploaded()
        self._next, self._token = device.pinned(words.size, dtype=np.int32), device.pinned(4, dtype=np.int32)
        self._next[:] = words.get()
        self.n_bytes = self._next.nbytes
        jit.warm()

    def graph(self):
        """Replay the pass."""
        self._run.graphs(self._key)

    def largest(self):
        """Find the largest logit."""
        self._sampler.largest(1)

    def engine_down(self):
        """Copy the token to the host by the copy engine."""
        device.copy(self._token[:1], self._sampler.ids[:1])

    def engine_up(self):
        """Copy the batch to the device by the copy engine."""
        device.copy(self._batch.uploaded(), self._next)

    def engine_across(self):
        """Copy the token into the batch by the copy engine."""
        device.copy(self._batch.tokens[:1], self._sampler.ids[:1])

    def launch_down(self):
        """Copy the token to the host by a launch."""
        self._transfer(self._token.ctypes.data, self._sampler.ids.data.ptr, 1)

    def launch_up(self):
        """Copy the batch to the device by a launch."""
        self._transfer(self._batch.uploaded().data.ptr, self._next.ctypes.data, self._next.size)

    def launch_across(self):
        """Copy the token into the batch by a launch."""
        self._transfer(self._batch.tokens.data.ptr, self._sampler.ids.data.ptr, 1)


def milliseconds(parts):
    """Return the time of a step made of some parts, launched one after another without a wait."""
    device.synchronize()
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    for i in range(WARM + STEPS):
        if i == WARM:
            start.record()
        for part in parts:
            part()
    end.record()
    end.synchronize()
    return cupy.cuda.get_elapsed_time(start, end) / STEPS


def main():
    """Print a line for each number of parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--layers", type=int, help="only the first layers")
    options = parser.parse_args()
    p = Parts(Step(options.file, options.layers))
    series = {
        "graph of the step": (p.graph,),
        "and the largest logit": (p.graph, p.largest),
        "copy engine: and the token to the host": (p.graph, p.largest, p.engine_down),
        "copy engine: and the next batch": (p.engine_up, p.graph, p.largest, p.engine_down),
        "copy engine: and the token into it": (p.engine_up, p.engine_across, p.graph, p.largest, p.engine_down),
        "launches: and the token to the host": (p.graph, p.largest, p.launch_down),
        "launches: and the next batch": (p.launch_up, p.graph, p.largest, p.launch_down),
        "launches: and the token into it": (p.launch_up, p.launch_across, p.graph, p.largest, p.launch_down),
    }
    took = {name: [] for name in series}
    for _ in range(TURNS):
        for name, parts in series.items():
            took[name].append(milliseconds(parts))
    print(f"a batch of {p.n_bytes} bytes; us of a step, median and least of {TURNS} turns")
    for name, times in took.items():
        print(f"{1e3 * np.median(times):9.1f} {1e3 * min(times):9.1f}  {name}", flush=True)


if __name__ == "__main__":
    main()
