"""Microseconds to pass activations between all blocks of a GPU while weights stream through shared memory.

    python benchmarks/gpu_exchange.py [--ops 8] [--stages-per-op 19]

Eight ops in a row each read 20 MB of weights, and need the whole result of the op before: an exchange. The results pass by
the end of a launch, by a counter in memory, or by readiness in the data (NaN halves until written), in one kernel or between
launches. See `gpu_exchange.cu`.

Columns: an exchange without weights; one beside the stream of weights, which does not depend on it; the whole stream with
seven exchanges, and its share of a plain copy's bandwidth; and what each exchange adds to the stream without any.
"""

import argparse
from pathlib import Path

import cupy
import numpy as np
from timing import copy_bandwidth, microseconds

from dflash.kernels.gpu.jit import kernel

SOURCE = Path(__file__).with_name("gpu_exchange.cu")
EDGE, COUNTER, DATA, NONE, AHEAD = range(5)
NAMES = {EDGE: "launches", COUNTER: "counter", DATA: "data", NONE: "no exchange", AHEAD: "ahead"}
BLOCKS, MAKERS, STAGE = 132, 128, 8192
OPS, PER_OP, BARE_OPS, COPIES, LAUNCHES = 8, 19, 17, 4, 8
FORMS = (EDGE, 23), (AHEAD, 23), (EDGE, 9), (AHEAD, 9), (COUNTER, 23), (DATA, 23)
"""Forms of the exchange, and stages of 8 KB of a block's ring; with 9, two blocks fit a multiprocessor."""
SIZES = (2048, 1), (5120, 1), (17408, 1), (17408, 4)
"""Halves that an op makes, and the number of parts of which each block reads one."""


class Chain:
    """A chain of ops over arrays of weights that take turns, as `LAUNCHES` launches or series of launches."""

    def __init__(self, weights, form, size, ops, per_op, *, beside=False):
        (form, stages), (width, parts) = form, size
        self.form, self.width, self.parts, self.ops = form, width, parts, ops
        self.results = cupy.full((2, ops + 1, width), 0xFFFF, np.uint16)
        self.results[:, 0] = self.given = cupy.asarray(np.random.default_rng(3).integers(0, 1 << 14, width, dtype=np.uint16))
        self.times, counters, sink = (cupy.zeros(n, t) for n, t in ((2 * BLOCKS, "u8"), (2 * (ops + 1), "u4"), (1, "u4")))
        shared, threads = stages * STAGE + 2 * width // parts, 544 if beside else 288
        made = kernel(
            SOURCE, "exchange", dependent=True, FORM=form, WIDTH=width, PARTS=parts, OPS=ops, PER_OP=per_op, STAGES=stages,
            BESIDE=int(beside),
        )  # fmt: skip
        each = range(ops if form in (EDGE, AHEAD) else 1)
        self.bound = [
            made.bind(BLOCKS, threads, (weights[i % COPIES], self.results, counters, i % 2, op, self.times, sink), shared)
            for i in range(LAUNCHES)
            for op in each
        ]

    def __call__(self, stream):
        """Launch once over all arrays."""
        for launch in self.bound:
            launch(stream)

    def check(self):
        """Compare the last results with those computed on the host."""
        cupy.cuda.Device().synchronize()
        want, read = self.given.get(), self.width // self.parts
        at = np.arange(self.width)
        part = at // (self.width // MAKERS) % self.parts
        for _ in range(self.ops):
            want = (want[part * read + (at * 5 + 1) % read] + 1 & 0x3FFF).astype(np.uint16)
        got = self.results[(LAUNCHES - 1) % 2, self.ops].get()
        if self.form != NONE and not np.array_equal(got, want):
            raise SystemExit(f"{NAMES[self.form]}, {self.width} halves: results differ")

    def microseconds(self):
        """Return the time of a chain."""
        took = microseconds(self, LAUNCHES)
        self.check()
        return took


def main():
    """Print a row for each form and width."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", type=int, default=OPS, help="ops of a chain")
    parser.add_argument("--stages-per-op", type=int, default=PER_OP, help="weights of an op, in 1.08 MB")
    options = parser.parse_args()
    ops, per_op = options.ops, options.stages_per_op
    n_bytes = ops * per_op * BLOCKS * STAGE
    some = cupy.asarray(np.random.default_rng(1).integers(0, 256, 1 << 24, dtype=np.uint8))
    weights = cupy.resize(some, (COPIES, n_bytes))
    plain = Chain(weights, (NONE, 23), SIZES[0], ops, per_op)
    cases = [(form, size) for size in SIZES for form in FORMS]
    bare = [[Chain(weights, *case, n, 0) for n in (BARE_OPS, 1)] for case in cases]
    streams = [Chain(weights, *case, ops, per_op) for case in cases]
    besides = [
        Chain(weights, *case, ops, per_op, beside=True) if case[0][0] in (COUNTER, DATA) and ops > 2 else None
        for case in cases
    ]
    copy, alone = copy_bandwidth(), plain.microseconds()
    print(f"copy {copy:.0f} GB/s; {n_bytes / 1e6:.0f} MB in one kernel without exchanges {alone:.1f} us, ", end="")
    print(f"{n_bytes / alone / 1e3 / copy:.1%} of copy; {ops} ops", flush=True)
    print("           ring  halves   read  bare us  beside us  stream us  of copy  adds us")
    for ((form, stages), (width, parts)), (many, one), stream, beside in zip(cases, bare, streams, besides, strict=True):
        each, latency = (many.microseconds() - one.microseconds()) / (BARE_OPS - 1), float("nan")
        took = stream.microseconds()
        if beside is not None:
            beside.microseconds()
            first, last = beside.times.get().reshape(BLOCKS, 2).astype(np.int64).T
            latency = np.mean(last - first) / (ops - 2) / 1e3
        print(
            f"{NAMES[form]:11} {stages * STAGE >> 10:3} {width:7} {width // parts:6} {each:8.2f} {latency:10.2f} "
            f"{took:10.1f} {n_bytes / took / 1e3 / copy:8.1%} {(took - alone) / (ops - 1):8.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
