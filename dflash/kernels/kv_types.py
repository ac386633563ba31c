"""Types of the KV cache: how a head of keys or values is stored, and the definition of q8_0.

A cache is an array (pages, PAGE, KV heads, stored elements of a head), one for keys and one for values. uint16 holds the
bits of float16. int8 is q8_0: a head of D values is D signed bytes, then `SCALES` bytes with one float16 scale for each
block of `BLOCK` values. The scales fill the last line of 16 bytes, so that heads of every size begin on such a line.

A position is quantized alone, when it is appended. It holds the values ``float16(byte * scale)`` from then on: attention
reads the same numbers whether the position was appended in this forward or long ago.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.errors import RequestError

BLOCK = 32
"""Values that share a scale, as in llama.cpp's q8_0."""

SCALES = 16
"""Bytes after the values of a head: eight float16, for up to 256 values."""

MAX_SCALE = 515.5
"""Largest scale whose values are finite in float16; larger values saturate, as in a float16 cache."""


class KvType(NamedTuple):
    """Storage of keys or values.

    Parameters
    ----------
    dtype : numpy type
        Type of the array of a cache.
    extra : int
        Elements of a head after its values.
    """

    dtype: Any
    extra: int = 0

    def head_elements(self, head_size: int) -> int:
        """Return the elements of a stored head of `head_size` values."""
        return head_size + self.extra

    def head_bytes(self, head_size: int) -> int:
        """Return the bytes of a stored head of `head_size` values."""
        return self.head_elements(head_size) * np.dtype(self.dtype).itemsize


KV_TYPES = {"f16": KvType(np.uint16), "f32": KvType(np.float32), "q8_0": KvType(np.int8, SCALES)}
"""Types of stored keys and values by their names in llama.cpp."""


def kv_types(kv: str) -> tuple[KvType, KvType]:
    """Return the types of keys and of values.

    Parameters
    ----------
    kv : str
        A key of `KV_TYPES` for both, or two with a slash between them: ``"q8_0/f16"``.

    Raises
    ------
    RequestError
        If there is no such type.
    """
    names = kv.split("/")
    if len(names) > 2 or any(name not in KV_TYPES for name in names):
        raise RequestError(f"kv is {kv!r}, must be one of {', '.join(KV_TYPES)}, or two of them such as q8_0/f16")
    return KV_TYPES[names[0]], KV_TYPES[names[-1]]


def check_kv(kv: str, head_size: int, device: str) -> None:
    """Raise `RequestError` if heads of `head_size` values can't be stored like this on a device, ``"cpu"`` or ``"cuda"``."""
    keys, values = kv_types(kv)
    if device == "cuda" and keys is not values:
        raise RequestError(f"kv is {kv!r}: on a GPU keys and values have one type, such as q8_0")
    if np.int8 in (keys.dtype, values.dtype) and (head_size % BLOCK or head_size > BLOCK * SCALES // 2):
        raise RequestError(
            f"kv is {kv!r}: q8_0 needs heads of 32, 64, ... or 256 values, those of the model have {head_size}; use f16"
        )


def drafter_kv(kv: str) -> str:
    """Return the type for the cache of a drafter: that of its target, or f16 if the target's is quantized or mixed."""
    return kv if kv in ("f16", "f32") else "f16"


def head_size(cache: Any) -> int:
    """Return the number of values of a head in a cache, a NumPy or CuPy array."""
    return int(cache.shape[-1]) - (SCALES if cache.dtype == np.int8 else 0)


def quantize(values: NDArray[np.float32]) -> NDArray[np.int8]:
    """Quantize heads to q8_0 with llama.cpp's rounding.

    Parameters
    ----------
    values : float32 (..., D)
        D is a multiple of `BLOCK`, at most 256.

    Returns
    -------
    int8 (..., D + SCALES)

    Notes
    -----
    For each block, all in float32: ``scale = max|x| / 127``, ``byte = round(x * (1 / scale))`` with halves away from zero,
    zero if the scale is zero. The stored scale is rounded to float16, at most `MAX_SCALE`.
    """
    n = values.shape[-1]
    blocks = values.reshape(*values.shape[:-1], n // BLOCK, BLOCK)
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    wanted = (blocks * inverse).astype(np.float64)
    out = np.zeros((*values.shape[:-1], n + SCALES), np.int8)
    out[..., :n] = np.trunc(wanted + np.copysign(0.5, wanted)).reshape(values.shape)
    stored = np.minimum(scale[..., 0], np.float32(MAX_SCALE)).astype(np.float16)
    out[..., n : n + 2 * stored.shape[-1]] = stored.view(np.int8)
    return out


def numbers(cache: NDArray[Any]) -> NDArray[Any]:
    """Return the values of a cache or of some of its heads: float16 or float32 (..., D)."""
    if cache.dtype != np.int8:
        return cache.view(np.float16) if cache.dtype == np.uint16 else cache
    n = head_size(cache)
    scales = np.ascontiguousarray(cache[..., n : n + n // BLOCK * 2]).view(np.float16).astype(np.float32)
    return (cache[..., :n].astype(np.float32) * np.repeat(scales, BLOCK, axis=-1)).astype(np.float16)
