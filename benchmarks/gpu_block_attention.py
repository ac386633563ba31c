"""Attention of the blocks of a draft model on a GPU, microseconds per layer, compared with a plain copy in the same run.

``python benchmarks/gpu_block_attention.py``. 32 heads of 128 over 8 of the ring; a graph of 20 layers, each with its rings.
"""

import cupy
import numpy as np
from timing import copy_bandwidth, microseconds

from dflash.kernels.attention.cuda import Workspace
from dflash.kernels.block_attention.blocks import Blocks
from dflash.kernels.block_attention.cuda import BlockAttend, DeviceBlocks

HEADS, KV, WIDTH, LAYERS = 32, 8, 128, 20
CASES = [
    ("16 rows, no context", 16, 1, 0, 2304, 0),
    ("16 rows, 512", 16, 1, 512, 2304, 0),
    ("8 rows, 2048", 8, 1, 2048, 2304, 0),
    ("16 rows, 2048", 16, 1, 2048, 2304, 0),
    ("16 rows, window of 2048 in 9000", 16, 1, 9000, 2304, 2048),
    ("32 rows, 2048", 32, 1, 2048, 2304, 0),
    ("16 rows, 4096", 16, 1, 4096, 4352, 0),
    ("16 rows, 16384", 16, 1, 16384, 16640, 0),
    ("4 sequences of 16 rows, 2048", 16, 4, 2048, 2304, 0),
]


def main():
    """Print a table."""
    copy = copy_bandwidth()
    print(f"copy: {copy:.0f} GB/s\n{'':36}      us    GB/s  of copy")
    random = cupy.random.default_rng(1)
    for label, rows, sequences, length, places, window in CASES:
        n = rows * sequences
        first, each = np.arange(sequences + 1, dtype=np.int32) * rows, np.ones(sequences, np.int32)
        slots = np.arange(sequences, dtype=np.int32)
        blocks = DeviceBlocks.of(Blocks(first, slots, 0 * each, length * each))
        q, k, v = (
            random.standard_normal((n, heads, WIDTH), dtype=np.float32).astype(np.float16) for heads in (HEADS, KV, KV)
        )
        out, space, ops = cupy.zeros((n, HEADS * WIDTH), np.float16), Workspace(), []
        for _ in range(LAYERS):
            shape = sequences, places, KV, WIDTH
            rings = [random.standard_normal(shape, dtype=np.float32).astype(np.float16) for _ in range(2)]
            ops.append(BlockAttend(q, k, v, *rings, blocks, window=window, causal=False, out=out, workspace=space))
        us = microseconds(lambda stream, ops=ops, n=n: [op(n, stream) for op in ops], LAYERS)
        seen = min(length, window - 1) if window else length
        rate = 4 * sequences * (seen + rows) * KV * WIDTH / us / 1e3
        print(f"{label:36} {us:7.1f} {rate:7.0f} {rate / copy:8.0%}", flush=True)


if __name__ == "__main__":
    main()
