"""Copy bandwidth of the CPU, measured with NumPy."""

import statistics
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from time import perf_counter

import numpy as np

ROUNDS = 5


def bandwidth(n_bytes: int, threads: int) -> float:
    """Return the bytes read and written per second by a copy of `n_bytes` with several threads."""
    source, target = np.ones(n_bytes, np.uint8), np.zeros(n_bytes, np.uint8)
    cuts = np.linspace(0, n_bytes, threads + 1).astype(np.int64).tolist()
    parts = [slice(*cut) for cut in pairwise(cuts)]
    took = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(ROUNDS + 1):
            start = perf_counter()
            for done in [pool.submit(np.copyto, target[part], source[part]) for part in parts]:
                done.result()
            took.append(perf_counter() - start)
    return 2 * n_bytes / statistics.median(took[1:])
