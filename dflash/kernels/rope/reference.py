"""Definition: RMS norm and NeoX rotation of each head in float64, angles as one float32 product."""

import numpy as np

from dflash.kernels.kv_types import mixed, quantize
from dflash.kernels.ragged import PAGE


def angles(positions, inv_freq, *, cos, sin, sections=None):
    """Compute cosine and sine of ``float32(position) * inv_freq``, with the position on the pair's axis."""
    positions = np.atleast_2d(positions)
    for j, frequency in enumerate(inv_freq):
        axis = 0
        if len(positions) == 3 and j % 3 > 0 and j < 3 * sections[j % 3]:
            axis = j % 3
        angle = (positions[axis].astype(np.float32) * np.float32(frequency)).astype(np.float64)
        cos[:, j], sin[:, j] = np.cos(angle), np.sin(angle)


def rotate(query, key, value, q_norm, k_norm, cos, sin, rows, *, eps, q, k, v, bias=None):
    """Write queries to `q`, and keys and values to the places of the rows in the cache."""
    n, heads, width = q.shape
    queries, keys, values = query.reshape(n, heads, -1)[..., :width], key.reshape(n, -1, width), value.reshape(n, -1, width)
    if bias is not None:
        own = np.split(bias.reshape(-1, width), (heads, heads + keys.shape[1]))
        queries, keys, values = (x + b for x, b in zip((queries, keys, values), own, strict=True))
    queries, keys = turned(queries, q_norm, eps, cos, sin), turned(keys, k_norm, eps, cos, sin)
    q[:], keys = (mixed(queries), mixed(keys)) if k.dtype == np.uint8 else (queries, keys)
    index = rows.length[rows.sequence] + np.arange(n) - rows.row_starts[rows.sequence]
    page = rows.pages[rows.sequence, index // PAGE]
    for cache, rows_of_it in ((k, keys), (v, values)):
        if cache.dtype == np.uint16:
            cache.view(np.float16)[page, index % PAGE] = rows_of_it.astype(np.float32)
        elif cache.dtype in (np.int8, np.uint8):
            kv = "q8_0" if cache.dtype == np.int8 else "q4_0"
            cache[page, index % PAGE] = quantize(rows_of_it.astype(np.float32), kv)
        else:
            cache[page, index % PAGE] = rows_of_it


def turn(x, norm, cos, sin, *, eps, mixes=False):
    """Norm and rotate heads in place."""
    rotated = turned(x, norm, eps, cos, sin)
    x[:] = mixed(rotated) if mixes else rotated


def turned(x, weight, eps, cos, sin):
    """Return heads (N, heads, width) after a norm, unless `weight` is None, and rotation."""
    x = x.astype(np.float64)
    x = x if weight is None else x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * weight
    half = cos.shape[1]
    c, s = (table[:, None].astype(np.float64) for table in (cos, sin))
    left, right = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([left * c - right * s, right * c + left * s, x[..., 2 * half :]], axis=-1)


def cases():
    """Yield names, sequences (committed length, rows, kind), query heads, KV heads, head size, rotated elements, gated."""
    yield "one token", [(0, 1, "chain")], 4, 2, 256, 64, True
    yield "last of a page", [(255, 1, "chain")], 2, 1, 64, 64, False
    yield "a chain over a border", [(250, 16, "chain")], 3, 1, 48, 16, True
    yield "a tree", [(13, 31, "tree")], 4, 2, 128, 128, False
    yield "few pairs", [(1, 5, "chain")], 1, 1, 16, 2, True
    yield "a prompt", [(0, 300, "prefill")], 4, 2, 64, 16, True
    yield "everything", [(0, 3, "tree"), (255, 7, "chain"), (600, 1, "chain"), (130, 70, "prefill")], 6, 2, 80, 42, True
