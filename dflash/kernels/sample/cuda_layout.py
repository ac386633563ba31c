"""Records and launch shapes that the sampling kernels and their launchers share."""

from typing import Any

import numpy as np

from dflash.kernels.sample.params import SampleParams

MOST_TOP = 128
"""Likeliest tokens that are found on the device; for more a row is copied back."""

LAW = np.dtype(
    [
        ("scale", np.float32),
        ("floor", np.float32),
        ("top_k", np.int32),
        ("position", np.uint32),
        ("seed", np.uint64),
        ("top_p", np.float64),
        ("n_top", np.int32),
        ("unused", np.int32),
    ]
)
"""``SampleParams`` in rows.cuh."""

FOUND = np.dtype(
    [
        ("total", np.uint64),
        ("largest", np.float32),
        ("chosen", np.float32),
        ("ids", np.int32, MOST_TOP),
        ("values", np.float32, MOST_TOP),
    ]
)
"""``Found`` in logprobs.cu."""

GROUP = 128
"""Logits of a row that share one maximum, as in rows.cuh."""

SURVEY = {"THREADS": 256, "CHUNK": 2048}
"""Threads of a block of row_stats.cu, and logits that a block reads."""

SELECT_THREADS = 1024
"""Threads of a block of topk_topp.cu and logprobs.cu; a block handles a whole row."""


def record(params: SampleParams) -> tuple[Any, ...]:
    """A law as a row of `LAW`, without its position."""
    n_top = -1 if params.n_top is None else min(params.n_top, MOST_TOP)
    if params.scale is None:
        return (0.0, 0.0, 0, 0, 0, 1.0, n_top, 0)
    return (params.scale, params.floor, min(params.top_k, 2**31 - 1), 0, params.seed % (1 << 64), params.top_p, n_top, 0)
