"""Microseconds per layer of convolution, delta rule and norm on a GPU, on the shapes of real models.

The layers of a model, each with its own state, are launched one after another in a CUDA graph; a result is the median
replay. `of copy` is the bandwidth of reading and writing the states, relative to a plain copy.

    python benchmarks/gpu_delta.py                  # all models
    python benchmarks/gpu_delta.py --model 27B --sweep
"""

import argparse
import sys
from pathlib import Path

import cupy
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from batches import tree
from mixer import Mixer
from recurrent import batch
from timing import copy_bandwidth

from dflash.kernels.cases import Rows
from dflash.kernels.conv.memory import ConvMemory
from dflash.kernels.delta import cuda
from dflash.kernels.delta.memory import DeltaMemory
from dflash.kernels.gpu import device, jit
from dflash.kernels.gpu.batch import DeviceBatch
from dflash.model.state.sequence_state import MOST_KEPT

MODELS = {"27B": (16, 48, 128, 128), "35B-A3B": (16, 32, 128, 128), "0.8B": (16, 16, 128, 128)}
PASSES = {
    "1": [Rows(1)],
    "1 after 1": [Rows(1, accepted=(0,))],
    "chain 8 after 4": [Rows(8, accepted=(0, 1, 2, 3))],
    "chain 16 after 6": [Rows(16, accepted=tuple(range(6)))],
    "tree 16 after 4": [Rows(16, "tree", accepted=(0, 1, 4, 9))],
    "tree 23 after 4": [Rows(23, "tree", accepted=(0, 1, 4, 9))],
    "tree 64 after 6": [Rows(64, "tree", accepted=(0, 1, 4, 9, 12, 20))],
    "8 sequences after 1": [Rows(1, slot=s, accepted=(0,)) for s in range(8)],
    "4 chains of 16 after 6": [Rows(16, slot=s, accepted=tuple(range(6))) for s in range(4)],
}
KEPT = MOST_KEPT
MANY = (
    {f"{n} sequences after 1": [Rows(1, slot=s, accepted=(0,)) for s in range(n)] for n in (16, 64, 128)}
    | {
        f"{n} sequences, written every {KEPT}th step": [
            Rows(1, slot=s, accepted=tuple(range(k)), buffer=2 * (k % KEPT)) for s in range(n) for k in (1 + s % KEPT,)
        ]
        for n in (16, 64, 128)
    }
    | {
        f"{n} chains of {rows} after 2": [Rows(rows, slot=s, accepted=(0, 1)) for s in range(n)]
        for n, rows in ((16, 2), (16, 4), (32, 2))
    }
)
PROMPTS = 512, 2048, 8192
RUNS = 9


def seconds(run, repeats=3):
    """Return the median time of replays of a captured `run`."""
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        run()
        stream.synchronize()
        stream.begin_capture()
        for _ in range(repeats):
            run()
        graph = stream.end_capture()
        times = []
        for _ in range(RUNS):
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            graph.launch(stream)
            start.record(stream)
            graph.launch(stream)
            end.record(stream)
            stream.synchronize()
            times.append(cupy.cuda.get_elapsed_time(start, end) / 1e3 / repeats)
    return float(np.median(times))


class Model:
    """Layers of one shape, each with its own state; inputs are shared."""

    def __init__(self, shape, *, layers, slots, rows, sequences):
        self.shape, self.mixer, self.rows = shape, Mixer(*shape), rows
        self.memories = [
            (ConvMemory.empty(slots, 4, self.mixer.n_channels, device.zeros), DeltaMemory.empty(slots, *shape, device.zeros))
            for _ in range(layers)
        ]
        random = cupy.random.default_rng(1)
        for _, memory in self.memories:
            memory.state[:] = random.standard_normal(memory.state.shape, dtype=np.float32)
            memory.decay[:] = 1
            memory.k[:] = 0.1
        self.batch = DeviceBatch(rows, sequences, 64)
        sizes = self.mixer.n_channels, shape[1] * shape[3], shape[1], shape[1]
        arrays = [random.standard_normal((rows, size), dtype=np.float32) for size in sizes]
        self.inputs = cuda.Inputs(*arrays, cupy.empty((rows, shape[1] * shape[3]), np.float16))
        names = "taps", "ssm_a", "ssm_dt", "ssm_norm"
        self.weights = cuda.MixerWeights(*(cupy.asarray(getattr(self.mixer, name)) for name in names), 1e-6)

    def steps(self, **options):
        made = (self.inputs, self.weights, self.batch)
        return [cuda.DeltaStep(*made, *memories, **options) for memories in self.memories]

    def prompts(self):
        scratch = cuda.PromptScratch(self.rows, *self.shape, sequences=self.batch.max_sequences)
        return [cuda.Prompt(self.inputs, self.weights, self.batch, *memories, scratch) for memories in self.memories]

    def microseconds(self, ops, sequences, n=None, **options):
        """Launch one of `ops` for all layers."""
        forks = [like_a_draft(rows.n) if rows.form == "tree" else list(range(-1, rows.n - 1)) for rows in sequences]
        rows = batch(sequences, parents=forks)
        n = n or int(rows.row_starts[-1])
        self.batch.upload(np.zeros(int(rows.row_starts[-1]), np.int32), rows)
        return 1e6 * seconds(lambda: [op(n, **options) for op in ops]) / len(ops)


def like_a_draft(n):
    """Return parents as in typical draft trees: a trunk with branches of falling length."""
    if n < 8:
        return tree(np.random.default_rng(n), n)
    trunk = n // 2
    parents = list(range(-1, trunk - 1))
    ends = {}
    while len(parents) < n:
        for at in range(trunk):
            if len(parents) < n and len(parents) % 3 >= at % 3:
                parents.append(ends.get(at, at))
                if at % 2 == 0:
                    ends[at] = len(parents) - 1
    return parents


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--decode", action="store_true", help="no prompts")
    parser.add_argument("--sweep", action="store_true", help="try other ways to share the work")
    arguments = parser.parse_args()
    bandwidth = copy_bandwidth()
    print(f"{cupy.cuda.runtime.getDeviceProperties(0)['name'].decode()}, copy {bandwidth:.0f} GB/s")
    for name in arguments.model or MODELS:
        shape = MODELS[name]
        decode(name, shape, bandwidth, sweep=arguments.sweep)
        if not arguments.decode:
            prefill(name, shape)


def decode(name, shape, bandwidth, *, sweep):
    variants = {"": {}}
    if sweep:  # value rows of a thread; blocks of a head; the norm as a kernel of its own
        variants |= {
            "2 rows": {"value_rows": 2},
            "4 rows": {"value_rows": 4},
            "4 blocks": {"split": 4},
            "+ norm": {"fused": False},
        }
    print(f"\n{name}, decode: us a layer" + " " * 8 + "".join(f"{label:>16}" for label in variants))
    # Few sequences have many layers, so that no state is in the L2 cache.
    for passes, layers in ((PASSES, 48), (MANY, 4)):
        slots = max(map(len, passes.values()))
        model = Model(shape, layers=layers, slots=slots, rows=max(64, slots), sequences=slots)
        ops = [model.steps(**options) for options in variants.values()]
        sizes = {label: {"n_sequences": len(rows), "longest": max(row.n for row in rows)} for label, rows in passes.items()}
        for label, sequences in passes.items():
            for op in (op for of_variant in ops for op in of_variant):
                op(sum(rows.n for rows in sequences), **sizes[label])
        jit.warm()
        for label, sequences in passes.items():
            times = [model.microseconds(of_variant, sequences, **sizes[label]) for of_variant in ops]
            written = sum(bool(rows.accepted) and rows.buffer < 2 for rows in sequences)
            moved = (len(sequences) + written) * 4 * shape[1] * shape[2] * shape[3]
            best = moved / bandwidth / 1e3 / min(times)
            print(f"{label:<36}" + "".join(f"{time:16.2f}" for time in times) + f"   {best:5.0%} of copy", flush=True)
        del ops, model


def prefill(name, shape):
    for n in PROMPTS:
        model = Model(shape, layers=4, slots=1, rows=n, sequences=2)
        time = model.microseconds(model.prompts(), [Rows(n, "prefill")], n)
        print(f"{name}, prompt of {n}: {time / 1e3:.3f} ms a layer", flush=True)


if __name__ == "__main__":
    main()
