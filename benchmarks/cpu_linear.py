"""Nanoseconds for 16 weights of a token in the packed multiply on a CPU, for weights in the L2 cache and in memory.

    python benchmarks/cpu_linear.py [--threads 1] [--kinds Q4_K Q6_K]

Each number is the least of six.
"""

import argparse
import sys
from pathlib import Path
from time import perf_counter

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from matrices import random_matrix

from dflash.kernels.cpu.jit import use_threads
from dflash.kernels.linear import linear

ONE = [(512, 1024, 1), (131072, 1024, 1), (73728, 2560, 1)]
SEVERAL = [(4096, 2560, tokens) for tokens in (2, 4, 8, 512)] + [(4096, 1024, 16), (2560, 9216, 16)]


def nanoseconds(kind, rows, width, tokens):
    """Return the time of a multiply for 16 weights and a token."""
    weight, x = random_matrix(rows, width, kind), np.random.default_rng(0).standard_normal((tokens, width), np.float32)
    out, turns, best = np.empty((tokens, rows), np.float32), max(1, 2**28 // (rows * width * tokens)), np.inf
    linear(x, [weight], [out])
    for _ in range(6):
        start = perf_counter()
        for _ in range(turns):
            linear(x, [weight], [out])
        best = min(best, perf_counter() - start)
    return best / turns * 16e9 / (rows * width * tokens)


def main():
    """Print a line for each format and shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", default=["Q4_K", "Q6_K"])
    options = parser.parse_args()
    use_threads(options.threads)
    for kind in options.kinds:
        for rows, width, tokens in ONE + SEVERAL:
            print(
                f"{kind} {rows} rows of {width}, {tokens} tokens: {nanoseconds(kind, rows, width, tokens):.2f} ns",
                flush=True,
            )


if __name__ == "__main__":
    main()
