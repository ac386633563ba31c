"""Unquantized tensors of files as float32."""

import numpy as np
from numpy.typing import NDArray

FLOATS = ("F32", "F16", "BF16")
"""Types of unquantized tensors."""


def to_float32(data: NDArray[np.uint8], kind: str) -> NDArray[np.float32]:
    """Return a copy of the bytes (n,) of a tensor of one of `FLOATS` as numbers; `data` need not be aligned."""
    raw = data.tobytes()
    if kind == "BF16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, "<f4" if kind == "F32" else "<f2").astype(np.float32)
