"""Records and launch shapes that the sampling kernels and their launchers share."""

from typing import Any

import numpy as np

from dflash.kernels.sample.params import SampleParams

MOST_TOP = 128
"""Largest number of most probable tokens found on the device; for more, the row is copied to the host."""

ROW_PARAMS = np.dtype(
    {
        "names": ["scale", "floor", "top_k", "position", "seed", "top_p", "n_top", "unused", "mask"],
        "formats": [np.float32, np.float32, np.int32, np.uint32, np.uint64, np.float64, np.int32, np.int32, np.uint64],
    }
)
"""Record of `SampleParams`, a position and the device address of a mask or 0; ``SampleParams`` in rows.cuh."""

FOUND = np.dtype(
    {
        "names": ["total", "largest", "chosen", "ids", "values"],
        "formats": [np.uint64, np.float32, np.float32, (np.int32, MOST_TOP), (np.float32, MOST_TOP)],
    }
)
"""Record of a row's log-probabilities; ``RowLogprobs`` in rows.cuh."""

GROUP = 128
"""Logits of a row that share one maximum, as in rows.cuh."""

SURVEY = {"THREADS": 256, "CHUNK": 2048}
"""Threads of a block of row_stats.cu, and logits that a block reads."""

SELECT_THREADS = 1024
"""Threads of a block of topk_topp.cu and logprobs.cu; a block handles a whole row."""


def record(params: SampleParams) -> tuple[Any, ...]:
    """Return sampling parameters as a record of `ROW_PARAMS`; position and mask are 0."""
    n_top = -1 if params.n_top is None else min(params.n_top, MOST_TOP)
    if params.scale is None:
        return (0.0, 0.0, 0, 0, 0, 1.0, n_top, 0, 0)
    top_k, seed = min(params.top_k, 2**31 - 1), params.seed % (1 << 64)
    return (params.scale, params.floor, top_k, 0, seed, params.top_p, n_top, 0, 0)
