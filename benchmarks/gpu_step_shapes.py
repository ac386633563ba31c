"""Search of launch shapes of the packed multiply inside a decode step on Hopper, one kind of launch at a time.

    python benchmarks/gpu_step_shapes.py FILE [--rows 1 16] [--layers N] [--best N]

For each kind of launch that splits K (types, rows and width of its weights), every shape with the K slices in use that fits
replaces the one in use, in all launches of the kind, and the graph of the step is captured anew. So a shape is timed with
its neighbours, and the bits stay the same. The table has microseconds of a launch that a shape is faster than the rule of
`tile_config.py`: C, blocks of a cluster; K, slices of a block; U, units; M, tiles of a unit; X, stages of tokens. Last, the
best shapes of all kinds together, in turns with the rule.
"""

import argparse
from collections import Counter
from itertools import pairwise, product
from pathlib import Path

import cupy
from gpu_profile import Step
from timing import copy_bandwidth

from dflash.errors import KernelError
from dflash.kernels.formats.cuda import tile_bytes
from dflash.kernels.gpu import jit
from dflash.kernels.linear import cuda as linear
from dflash.kernels.linear import tile_config
from dflash.kernels.linear.cuda import GATED, bucket

SERIES, REPLAYS, TURNS = 3, 12, 3
WARPS, BLOCKS = (6, 28), 0.7
"""Warps of a block that are tried, fewest and most; and the least share of multiprocessors that have a block."""
NAMES = {"CLUSTER": "C", "K_SLICES": "K", "ROW_UNITS": "U", "MT": "M", "X_STAGES": "X"}
_compiled = jit._kernel


def _remembered(path, entry, dependent, options, *about):
    """Compile a kernel, and keep what it was made from."""
    made = _compiled(path, entry, dependent, options, *about)
    made.made_from = path, entry, dependent, options
    return made


def variant(made, shape):
    """Return a kernel with other constants."""
    path, entry, dependent, options = made.made_from
    constants = dict(option[2:].split("=", 1) for option in options)
    return jit.kernel(path, entry, dependent=dependent, **(constants | shape))


def shapes(n, launch, now):
    """Return the shapes of a launch for bucket `n` with the K slices in use that fit a block; one wave of blocks."""
    types = {weight.type for weight, _ in launch._kept}
    tiles, width, sides = sum(launch._tiles), launch._args[0][2], 2 if launch._mode == GATED else 1
    chip, slices, found = linear._chip(), now["K_SLICES"] * now["CLUSTER"], []
    columns = max(end - start for start, end in pairwise(tile_config.cuts(width, slices)))
    if slices == 1:
        return []
    for cluster, of_unit, stages in product((1, 2, 4), (1, 2, 3), (1, 2, 3, 4, 5)):
        units = sides * -(-tiles // (chip.processors // cluster * of_unit))
        warps, parts = slices // cluster * units, -(-columns // 256)
        blocks = cluster * -(-tiles // (units // sides * of_unit))
        fits = slices % cluster == 0 and WARPS[0] <= warps <= WARPS[1] and blocks >= BLOCKS * chip.processors
        if not fits or stages > parts or (stages == 1 and parts > 1):
            continue
        values = dict(zip(NAMES, (cluster, slices // cluster, units, of_unit, stages), strict=True))
        space = (chip.shared - 3) * 1024
        if values["K_SLICES"] * stages * n * 608 + warps * of_unit * max(map(tile_bytes, types)) <= space:
            found.append(now | values | {"SMEM_BYTES": space, "BLOCKS_PER_SM": 1})
    return [shape for shape in found if shape != now]


class Search:
    """The step of a model whose launch shapes can be replaced."""

    def __init__(self, step, rows):
        self._run, self._rows = step.run, rows
        self.key = step.lay(rows)
        self.bucket = 1 if rows == 1 else bucket(rows)
        self.launches = {}
        for block in self._run.layers.blocks:
            ffn = [block.ffn.gate_up, block.ffn.ffn_down] if hasattr(block.ffn, "gate_up") else []
            for op in (block.mixer.project, block.mixer.output, *ffn):
                (launch,) = op._pieces[0][2]
                types = ",".join(sorted({weight.type for weight, _ in launch._kept}))
                gated = ", gated" if launch._mode == GATED else ""
                kind = f"{types} {16 * sum(launch._tiles)} x {launch._args[0][2]}{gated}"
                self.launches.setdefault(kind, []).append(launch)
        for kind, launches in self.launches.items():  # the first and the last layer may have other norms
            usual = Counter(self._in_use(launch)[1].made_from for launch in launches).most_common(1)[0][0]
            self.launches[kind] = [launch for launch in launches if self._in_use(launch)[1].made_from == usual]
        self._rule = {id(one): self._in_use(one) for some in self.launches.values() for one in some}

    def _in_use(self, launch):
        n = self.bucket if self.bucket in launch._shapes else bucket(self._rows)
        return launch._shapes[n], launch._kernels[n]

    def shape(self, kind):
        """Return the shape of the rule."""
        return self._rule[id(self.launches[kind][0])][0]

    def put(self, kind, shape=None):
        """Take a shape for the launches of a kind, or that of the rule."""
        for launch in self.launches[kind]:
            rule, made = self._rule[id(launch)]
            launch._bound.pop(self.bucket, None)
            launch._shapes[self.bucket] = shape or rule
            launch._kernels[self.bucket] = variant(made, shape) if shape else made

    def microseconds(self):
        """Return the least mean of some series of replays."""
        self._run.graphs._graphs.pop(self.key, None)
        jit.warm()
        uploaded = self._run.batch.uploaded().copy()
        self._run.graphs.prepare(self.key)  # clears the batch
        self._run.batch.uploaded()[...] = uploaded
        took = []
        for _ in range(1 + SERIES):
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record()
            for _ in range(REPLAYS):
                self._run.graphs(self.key)
            end.record()
            end.synchronize()
            took.append(cupy.cuda.get_elapsed_time(start, end) / REPLAYS * 1e3)
        return min(took[1:])


def label(shape):
    """Return the letters and numbers of a shape."""
    return " ".join(f"{letter}{shape[name]}" for name, letter in NAMES.items())


def search(step, rows, best):
    """Print the best shapes of each kind of launch, and the step with all of them."""
    one, chosen = Search(step, rows), {}
    print(f"{rows} rows, {one.microseconds():.1f} us a step", flush=True)
    for kind, launches in one.launches.items():
        found, before = [], one.microseconds()
        for shape in shapes(bucket(rows), launches[0], one.shape(kind)):
            try:
                one.put(kind, shape)
                found.append((one.microseconds(), label(shape), shape))
            except KernelError as error:
                print(f"    {label(shape)} does not compile or launch: {str(error)[:80]}")
        one.put(kind)
        now = min(before, one.microseconds())
        found.sort(key=lambda item: item[0])
        gains = ", ".join(f"{(now - us) / len(launches):+.2f} {name}" for us, name, _ in found[:best])
        print(f"  {kind}: {len(launches)} launches of {label(one.shape(kind))}; {gains}", flush=True)
        if found and found[0][0] < now:
            chosen[kind] = found[0][2]
    for _ in range(TURNS):
        for name, some in (("rule", {}), ("best", chosen)):
            for kind in one.launches:
                one.put(kind, some.get(kind))
            print(f"  {name} {one.microseconds():.1f} us a step", flush=True)
    for kind in one.launches:
        one.put(kind)


def main():
    """Search for each number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[1], choices=[1, 8, 16, 24, 32])
    parser.add_argument("--layers", type=int, help="only the first layers")
    parser.add_argument("--best", type=int, default=4)
    options = parser.parse_args()
    jit._kernel = _remembered
    step = Step(options.file, options.layers)
    print(f"copy: {copy_bandwidth():.0f} GB/s", flush=True)
    for rows in options.rows:
        search(step, rows, options.best)


if __name__ == "__main__":
    main()
