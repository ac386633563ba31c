"""Microseconds of each kernel of a decode step, in the step's own CUDA graph, and the cost of cold machine code.

    python benchmarks/gpu_profile.py FILE [--rows 1 16] [--sequences 1 64 128] [--depth 1000] [--layers N] [--cold]

Every kernel of a step waits until the one before has ended, and then one thread stores the time (`globaltimer`). So the time
of a kernel is that from the end of the kernel before it to its own end. Before Hopper, also as a target, a kernel starts
after that end, and its time is that from its start to the start of the next one. The stamps change the sources in memory
only; the table also gives the time of a step without them.

With `--sequences` above 1 each has `--rows` rows, after `--depth` positions of keys and values that are zero.

With --cold, the kernels of two layers of linear attention, whose weights fit the L2 cache, run in the order of a model and
sorted by kernel. The difference of a launch is the cost of machine code that is no longer in the instruction caches.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import cupy
import numpy as np
from timing import copy_bandwidth, microseconds

from dflash.kernels.gpu import device, jit
from dflash.kernels.gpu.staging import Staging
from dflash.kernels.ragged import PAGE
from dflash.model.batch import Span, ragged
from dflash.model.config import Config
from dflash.model.cuda.passes import DecodePass, rows_of
from dflash.model.cuda.pool_backend import DEVICE
from dflash.model.cuda.scratch_arena import ScratchArena
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.gguf.file import GGUFFile
from dflash.model.state.budget import n_cores
from dflash.model.state.pools import Pools
from dflash.model.state.sequence_state import State
from dflash.model.weights import Weights

STAMPED, REPLAYS, KERNELS, CAPACITY = "DFLASH_PROFILE_STAMPED", 30, 512, 8192
WAIT = '#if __CUDA_ARCH__ >= 900\n    asm volatile("griddepcontrol.wait;" ::: "memory");\n#endif'
STAMP = """
    const bool stamps = !(threadIdx.x | threadIdx.y | blockIdx.x | blockIdx.y | blockIdx.z);
    volatile unsigned* const stamp_count = (volatile unsigned*)PROFILE_AT + PROFILE_KERNEL;
    unsigned stamp = 0;
    if (stamps) stamp = *stamp_count;
    %s
    if (stamps) {
        unsigned long long stamp_time;
        asm volatile("mov.u64 %%0, %%globaltimer;" : "=l"(stamp_time) :: "memory");
        volatile unsigned long long* const stamp_at = (volatile unsigned long long*)(PROFILE_AT + 4ull * KERNELS);
        stamp_at[(size_t)PROFILE_KERNEL * CAPACITY + stamp] = stamp_time;
        *stamp_count = stamp + 1;
    }
"""


class Stamps:
    """Stamps of all kernels that are compiled after this object was made."""

    def __init__(self):
        self.names = []
        self._all = cupy.zeros(4 * KERNELS + 8 * KERNELS * CAPACITY, np.uint8)
        source, compiled = jit.source, jit._kernel
        text = STAMP.replace("KERNELS", str(KERNELS)).replace("CAPACITY", str(CAPACITY)) % WAIT
        jit.source = lambda path: source(path).replace(WAIT, text)
        jit._kernel = lambda path, entry, dependent, options, *device: compiled(
            path, entry, dependent, (*options, *self._options(entry, options)), *device
        )

    def _options(self, entry, options):
        name = f"{entry} " + " ".join(sorted(option[2:] for option in options))
        if name not in self.names:
            self.names.append(name)
        return f"-DPROFILE_AT={self._all.data.ptr}ull", f"-DPROFILE_KERNEL={self.names.index(name)}"

    def clear(self):
        """Forget all stamps."""
        self._all[:] = 0
        cupy.cuda.Device().synchronize()

    def read(self):
        """Return (nanoseconds, name) of all stamps in order."""
        cupy.cuda.Device().synchronize()
        counts = self._all[: 4 * KERNELS].view(np.uint32).get()
        times = self._all[4 * KERNELS :].view(np.uint64).reshape(KERNELS, CAPACITY).get()
        return sorted((int(t), name) for i, name in enumerate(self.names) for t in times[i, : counts[i]])


class Step:
    """A decode pass over a file of a model, without prompts and sampling."""

    def __init__(self, path, layers=None, sequences=1, depth=0):
        file, pages = GGUFFile.open(path), depth // PAGE + 4
        whole = Config.from_gguf(file.metadata, file.tensors)
        config = replace(whole, context=pages * PAGE, n_mtp=0)
        if layers:
            config = replace(config, n_layers=layers, recurrent=config.recurrent[:layers])
        self.config, self.depth = config, depth
        self.pools = Pools(config, pages=pages * sequences, slots=sequences, kv="f16", backend=DEVICE)
        with Staging(n_cores()) as staging:
            weights = DeviceWeights(Weights(file, whole), staging)
            self.run = DecodePass(weights, config, self.pools, pages, ScratchArena([]), rows=rows_of(config, sequences))
        jit.warm()
        self.states = [State(self.pools, lambda *_: None, keeps_rows=True) for _ in range(sequences)]
        for state in self.states:
            state.reserve(depth + PAGE)
            state.length = depth

    def lay(self, rows, sequences=1):
        """Run a chain of rows of each sequence after an accepted one; then `replay` repeats it."""
        tokens = np.random.default_rng(rows).integers(0, self.config.n_vocab, rows * sequences, dtype=np.int32)
        states = self.states[:sequences]
        for n in (1, rows):
            of_states = [tokens[i * n : (i + 1) * n] for i in range(sequences)]
            laid, _, batch = ragged([Span.chain(state, some) for state, some in zip(states, of_states, strict=True)])
            self.run(laid, batch, (), logits=True)
            for state in states:
                state.mark_read(range(-1, n - 1), prefill=False)
                state.commit([0])
        cupy.cuda.Device().synchronize()
        return self.run.key_of(batch, (), logits=True)

    def milliseconds(self, key):
        """Return the median time of a replay."""
        stream, took = device.current_stream(), []
        for _ in range(REPLAYS):
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record(stream)
            self.run.graphs(key)
            end.record(stream)
            end.synchronize()
            took.append(cupy.cuda.get_elapsed_time(start, end))
        return float(np.median(took[3:]))


def profile(step, stamps, rows, sequences):
    """Print the time of each kernel of a step."""
    key = step.lay(rows, sequences)
    stamps.clear()
    for _ in range(REPLAYS):
        step.run.graphs(key)
        cupy.cuda.Device().synchronize()
    found, spent, steps = stamps.read(), defaultdict(list), 0
    first = found[0][1]
    for (start, name), (end, after) in pairwise(found):
        if after == first:
            steps += 1
        else:
            spent[name].append((end - start) / 1e3)
    steps = max(steps, 1)
    what = f"{sequences} x {rows} rows"
    print(f"{what} at {step.depth}, {step.milliseconds(key):.3f} ms a step with stamps; all but the last kernel:")
    print(f"{'a step':>7} {'us':>8} {'us a step':>10}  kernel")
    for name, each in sorted(spent.items(), key=lambda item: -sum(item[1])):
        print(f"{len(each) / steps:7.1f} {np.mean(each):8.2f} {sum(each) / steps:10.1f}  {name[:150]}")
    resolution = min((b - a for (a, _), (b, _) in pairwise(found) if b > a), default=0)
    total = sum(map(sum, spent.values())) / steps
    print(f"{total:26.1f}  in all; least difference of two stamps {resolution} ns\n", flush=True)


def cold(step):
    """Print microseconds of a launch in the order of the model, and sorted by kernel."""
    parts = [block for block, recurrent in zip(step.run.layers.blocks, step.config.recurrent, strict=True) if recurrent][4:6]
    step.lay(1)
    mixed = [launch for _ in range(9) for layer in parts for launch in layer]
    alike = [layer[i] for i in range(len(parts[0])) for _ in range(9) for layer in parts]
    for turn in range(2):
        for name, launches in (("order of the model", mixed), ("sorted", alike)):
            us = microseconds(lambda _, launches=launches: [launch(1) for launch in launches], len(launches))
            print(f"{name}: {us:.2f} us a launch, {len(launches)} launches, turn {turn + 1}", flush=True)


def main():
    """Print a table for each number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--sequences", type=int, nargs="+", default=[1])
    parser.add_argument("--depth", type=int, default=0, help="committed tokens of each sequence")
    parser.add_argument("--layers", type=int, help="only the first layers")
    parser.add_argument("--cold", action="store_true")
    options = parser.parse_args()
    stamped = STAMPED in os.environ
    stamps = Stamps() if stamped else None
    step = Step(options.file, options.layers, max(options.sequences), options.depth)
    for sequences in options.sequences:
        for rows in options.rows:
            if stamped:
                profile(step, stamps, rows, sequences)
            else:
                ms = step.milliseconds(step.lay(rows, sequences))
                print(f"{sequences} x {rows} rows at {options.depth}: {ms:.3f} ms a step without stamps", flush=True)
    if stamped:
        return
    if options.cold:
        cold(step)
    print(f"copy: {copy_bandwidth():.0f} GB/s", flush=True)
    with tempfile.TemporaryDirectory() as cache:  # the user's cache should not keep stamped code
        subprocess.run([sys.executable, *sys.argv], env={**os.environ, STAMPED: "1", "CUPY_CACHE_DIR": cache}, check=True)


if __name__ == "__main__":
    main()
