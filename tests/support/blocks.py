"""Blocks of a draft and rings of context for tests of kernels."""

import numpy as np
from batches import fill

from dflash.kernels.block_attention.blocks import Blocks
from dflash.kernels.block_attention.reference import visible


def of(sequences):
    """Blocks of sequences (begin, length, rows), in shuffled slots of which one is to spare."""
    begin, length, counts = (np.array(column, np.int32) for column in zip(*sequences, strict=True))
    slot = np.random.default_rng(len(sequences)).permutation(len(sequences) + 1)[1:].astype(np.int32)
    return Blocks(np.cumsum([0, *counts], dtype=np.int32), slot, begin, length)


def rows_of(blocks, heads, kv, width, kind=np.float32, seed=7):
    """Queries, keys and values of the rows."""
    rng, n = np.random.default_rng(seed), blocks.row_starts[-1]
    shapes = (n, heads, width), (n, kv, width), (n, kv, width)
    return [rng.standard_normal(shape, dtype=np.float32).astype(kind) for shape in shapes]


def rings(blocks, kv, width, places, window, kind, seed=5):
    """Keys and values of all context that some row sees; NaN in every other place and slot."""
    rng, made = np.random.default_rng(seed), []
    for _ in range(2):
        ring = fill(kind, (blocks.slot.max() + 2, places, kv, width))
        for s, slot in enumerate(blocks.slot):
            context, _ = visible(blocks, s, 0, places, window, causal=False)
            values = rng.standard_normal((len(context), kv, width), dtype=np.float32)
            values = values.astype(np.float16).view(np.uint16) if kind == np.uint16 else values.astype(kind)
            ring[slot, context % places] = values
        made.append(ring)
    return made
