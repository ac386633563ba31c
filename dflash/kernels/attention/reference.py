"""Definition in float64 NumPy: for every row, one softmax over all tokens that it sees."""

import numpy as np

from dflash.kernels.kv_types import numbers
from dflash.kernels.ragged import PAGE


def attend(q, k, v, rows, *, out, gate=None, window=0):
    """Compute ``out = softmax(q k^T / sqrt(D)) v``, times ``sigmoid(gate)``, over the last `window` tokens if not 0."""
    n, heads, width = q.shape
    for row in range(n):
        page, at = (part[-window:] for part in text(rows, row))
        keys, values = (numbers(cache[page, at]).astype(np.float64) for cache in (k, v))
        for head in range(heads):
            of = head // (heads // k.shape[2])
            scores = keys[:, of] @ q[row, head].astype(np.float64) / np.sqrt(width)
            weights = np.exp(scores - scores.max())
            result = weights @ values[:, of] / weights.sum()
            if gate is not None:
                result = result / (1 + np.exp(-gate[row].astype(np.float64).reshape(heads, 2, width)[head, 1]))
            out[row].reshape(heads, width)[head] = result


def compact(k, v, *, pages, length, path):
    """Move the rows of the path to positions length, length + 1, ..."""
    source, target = length + np.asarray(path), length + np.arange(len(path))
    for cache in (k, v):
        cache[..., pages[target // PAGE], target % PAGE, :, :] = cache[..., pages[source // PAGE], source % PAGE, :, :]


def text(rows, row):
    """Return page and place in it of every token that a row sees, the row itself last."""
    s = rows.sequence[row]
    own, at = [], row - rows.row_starts[s]
    while at >= 0:
        own.append(rows.length[s] + at)
        at = rows.parent[rows.row_starts[s] + at]
    index = np.concatenate([np.arange(rows.length[s]), own[::-1]]).astype(np.int64)
    return rows.pages[s, index // PAGE], index % PAGE


def cases():
    """Yield names, sequences (committed length, rows, kind: chain, tree or whole), query heads, KV heads, head size."""
    yield "first token", [(0, 1, "chain")], 4, 2, 64
    yield "one token", [(1, 1, "chain")], 4, 2, 256
    yield "last of a page", [(255, 1, "chain")], 2, 1, 32
    yield "first of a page", [(256, 1, "chain")], 3, 1, 48
    yield "second of a page", [(257, 3, "chain")], 6, 2, 128
    yield "a chain over a border", [(250, 16, "chain")], 4, 2, 64
    yield "a tree over a border", [(250, 16, "tree")], 4, 2, 64
    yield "the largest tree", [(600, 64, "tree")], 8, 2, 32
    yield "a prompt", [(0, 70, "prefill")], 4, 2, 64
    yield "a chunk of a prompt", [(600, 70, "prefill")], 6, 1, 16
    yield (
        "everything",
        [(0, 3, "tree"), (255, 16, "chain"), (600, 1, "chain"), (257, 64, "tree"), (130, 70, "prefill")],
        4,
        2,
        80,
    )
