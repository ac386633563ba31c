"""Definition in float64 NumPy: for every row, one softmax over all keys that it sees."""

import numpy as np

from dflash.kernels.kv_types import numbers


def block_attend(q, k, v, ring_k, ring_v, blocks, *, window, causal, out):
    """Compute ``out = softmax(q k^T / sqrt(D)) v`` over the context in the ring and the block itself."""
    _, heads, width = q.shape
    for s, slot in enumerate(blocks.slot):
        start, end = blocks.row_starts[s], blocks.row_starts[s + 1]
        for i in range(end - start):
            context, own = visible(blocks, s, i, ring_k.shape[1], window, causal)
            keys, values = (
                np.concatenate([numbers(ring[slot, context % ring.shape[1]]), block[start + own].astype(np.float64)])
                for ring, block in ((ring_k, k), (ring_v, v))
            )
            for head in range(heads):
                of = head // (heads // k.shape[1])
                scores = keys[:, of] @ q[start + i, head].astype(np.float64) / np.sqrt(width)
                weights = np.exp(scores - scores.max())
                out[start + i].reshape(heads, width)[head] = weights @ values[:, of] / weights.sum()


def append(k, v, ring_k, ring_v, *, slots, positions):
    """Write each row to the ring of its slot, at its position modulo the ring's size."""
    for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
        if slot >= 0:
            for ring, rows in ((ring_k, k), (ring_v, v)):
                kept = ring.view(np.float16) if ring.dtype == np.uint16 else ring
                kept[slot, position % ring.shape[1]] = rows[row]


def visible(blocks, s, i, places, window, causal):
    """Return the context positions and the rows of the block that row i of sequence s sees."""
    length = int(blocks.length[s])
    context = np.arange(max(int(blocks.begin[s]), length - places), length)
    own = np.arange(blocks.row_starts[s + 1] - blocks.row_starts[s])
    if causal:
        own = own[own <= i]
    if window:
        context, own = context[length + i - context < window], own[abs(own - i) < window]
    return context, own


def cases():
    """Yield names, sequences (begin, length, rows), query heads, KV heads, head size, ring places, window, causal."""
    yield "no context", [(0, 0, 4)], 4, 2, 64, 64, 0, False
    yield "one row, one position", [(0, 1, 1)], 2, 1, 64, 64, 0, True
    yield "a block", [(0, 37, 16)], 4, 2, 128, 512, 0, False
    yield "a causal block", [(0, 300, 16)], 4, 2, 128, 512, 0, True
    yield "a window", [(0, 300, 16)], 8, 2, 64, 512, 100, True
    yield "both ways in a window", [(0, 300, 16)], 6, 2, 64, 512, 64, False
    yield "a window smaller than the block", [(0, 20, 16)], 4, 4, 64, 64, 5, False
    yield "a causal window smaller than the block", [(0, 20, 16)], 4, 4, 64, 64, 5, True
    yield "only the row itself", [(0, 20, 7)], 3, 1, 64, 64, 1, False
    yield "a ring that went round", [(0, 1000, 16)], 4, 2, 128, 300, 0, False
    yield "a window over the end of the ring", [(0, 515, 16)], 4, 2, 256, 256, 200, True
    yield "a cut context", [(90, 97, 16)], 4, 2, 64, 64, 0, False
    yield "nothing left of a context", [(97, 97, 16)], 4, 2, 64, 64, 0, False
    yield "the largest block", [(0, 77, 32)], 8, 2, 64, 128, 0, True
    yield (
        "everything",
        [(0, 3, 2), (0, 700, 16), (40, 41, 1), (0, 0, 32), (0, 257, 5), (200, 530, 16)],
        8,
        2,
        64,
        512,
        300,
        True,
    )
