"""Ragged batches for tests of kernels."""

import numpy as np

from dflash.kernels.kv_types import BLOCK, KV_TYPES, quantize
from dflash.kernels.ragged import PAGE, PENDING, Ragged


def chain(n):
    """Parents of n rows that follow each other."""
    return list(range(-1, n - 1))


def fill(kind, shape):
    """Cache of NaN, as float32, as the bits of halves, or as q8_0 or q4_0 whose scales are NaN."""
    if kind in (np.int8, np.uint8):
        return np.full(shape, 0x7E, kind)
    return np.full(shape, 0x7E00, np.uint16) if kind == np.uint16 else np.full(shape, np.nan, np.float32)


def stored(kind, width):
    """Elements of a stored head of `width` values."""
    return {np.int8: KV_TYPES["q8_0"], np.uint8: KV_TYPES["q4_0"]}.get(kind, KV_TYPES["f16"]).head_elements(width)


def as_stored(kind, values):
    """Float32 values as a cache holds them."""
    if kind in (np.int8, np.uint8):
        return quantize(values, "q8_0" if kind == np.int8 else "q4_0")
    return values.astype(np.float16).view(np.uint16) if kind == np.uint16 else values


def fitting(kinds, width):
    """Round a head size up to one that caches of these types can store."""
    if kinds[0] == np.uint8:
        return max(BLOCK, 1 << (width - 1).bit_length())
    return width + (-width % BLOCK if {np.int8, np.uint8} & set(kinds) else 0)


def tree(rng, n):
    """Random parents of n rows."""
    return [-1] + [int(rng.integers(max(-1, i - 6), i)) for i in range(1, n)]


def ragged(sequences, *, pages=None):
    """Batch of sequences (committed length, parents, whole), in the pages of a shuffled cache with a page to spare.

    Parameters
    ----------
    sequences : list of (int, list of int, bool)
        Parents are counted within the sequence, -1 follows the committed text.
    pages : int32 (S, P), optional
        Page table to use in place of a shuffled one.
    """
    lengths = [length for length, _, _ in sequences]
    counts = [len(parents) for _, parents, _ in sequences]
    depth = []
    for _, parents, _ in sequences:
        own = []
        for parent in parents:
            own.append(own[parent] + 1 if parent >= 0 else 0)
        depth += own
    if pages is None:
        most = max((length + n - 1) // PAGE + 1 for length, n in zip(lengths, counts, strict=True))
        pages = np.random.default_rng(sum(lengths)).permutation(len(sequences) * most + 1)[1:].reshape(len(sequences), most)
    n = len(sequences)
    return Ragged(
        row_starts=np.cumsum([0, *counts], dtype=np.int32),
        sequence=np.repeat(np.arange(n, dtype=np.int32), counts),
        parent=np.array([p for _, parents, _ in sequences for p in parents], np.int32),
        depth=np.array(depth, np.int32),
        length=np.array(lengths, np.int32),
        pages=np.ascontiguousarray(pages, np.int32),
        slot=np.arange(n, dtype=np.int32),
        prefill=np.array([whole for _, _, whole in sequences], np.int32),
        accepted=np.zeros((n, PENDING), np.int32),
        n_accepted=np.zeros(n, np.int32),
        buffer=np.zeros(n, np.int32),
    )


def batch(sequences, seed=3):
    """Batch of sequences (committed length, rows, form), where a form is "prefill", "chain" or "tree"."""
    rng = np.random.default_rng(seed)
    return ragged([(at, tree(rng, n) if form == "tree" else chain(n), form == "prefill") for at, n, form in sequences])
