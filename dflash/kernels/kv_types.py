"""Types of the KV cache: how a head of keys or values is stored, and the definitions of q8_0 and q4_0.

A cache is an array (pages, PAGE, KV heads, stored elements of a head), one for keys and one for values. uint16 holds the
bits of float16. int8 is q8_0: a head of D values is D signed bytes, then `SCALES` bytes with one float16 scale for each
block of `BLOCK` values. The scales fill the last line of 16 bytes, so that heads of every size begin on such a line. uint8
is q4_0: D / 2 bytes of two numbers from 0 to 15, 8 above their value, then the same scales. Byte j of a block of q4_0 has
number j in its lower half and number j + 16 in its upper one.

Keys and queries of a layer with q4_0 keys are multiplied by a Hadamard matrix (`mixed`) before they are stored. It changes
no score, and spreads a single large element over the whole head, so that it does not spoil the scale of its block.

A position is quantized alone, when it is appended. It holds the values ``float16(number * scale)`` from then on: attention
reads the same numbers whether the position was appended in this forward or long ago.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.errors import RequestError

BLOCK = 32
"""Values that share a scale, as in llama.cpp's q8_0 and q4_0."""

SCALES = 16
"""Bytes after the values of a head: eight float16, for up to 256 values."""

MAX_SCALE = 515.5
"""Largest scale of q8_0 whose values are finite in float16; larger values saturate, as in a float16 cache."""

MAX_SCALE_4 = 8188.0
"""The same of q4_0, whose numbers are 8 at most."""


class KvType(NamedTuple):
    """Storage of keys or values.

    dtype: type of the array of a cache.
    extra: elements of a head after its values.
    each: values of an element.
    """

    dtype: Any
    extra: int = 0
    each: int = 1

    def head_elements(self, head_size: int) -> int:
        """Return the elements of a stored head of `head_size` values."""
        return head_size // self.each + self.extra

    def head_bytes(self, head_size: int) -> int:
        """Return the bytes of a stored head of `head_size` values."""
        return self.head_elements(head_size) * np.dtype(self.dtype).itemsize


KV_TYPES = {"f16": KvType(np.uint16), "f32": KvType(np.float32), "q8_0": KvType(np.int8, SCALES)}
KV_TYPES["q4_0"] = KvType(np.uint8, SCALES, 2)
"""Types of stored keys and values by their names in llama.cpp."""


def kv_types(kv: str) -> tuple[KvType, KvType]:
    """Return the types of keys and of values.

    kv: a key of `KV_TYPES` for both, or two with a slash between them: ``"q8_0/f16"``.
    """
    names = kv.split("/") if isinstance(kv, str) else []
    if len(names) not in (1, 2) or any(name not in KV_TYPES for name in names):
        raise RequestError(f"kv is {kv!r}, must be one of {', '.join(KV_TYPES)}, or two of them such as q8_0/f16")
    return KV_TYPES[names[0]], KV_TYPES[names[-1]]


def check_kv(kv: str, head_size: int, device: str) -> None:
    """Raise `RequestError` if heads of `head_size` values can't be stored like this on a device, ``"cpu"`` or ``"cuda"``."""
    keys, values = kv_types(kv)
    if device == "cuda" and keys is not values and not (keys.extra and values.extra):
        raise RequestError(f"kv is {kv!r}: on a GPU keys and values have one type, or are q8_0 and q4_0")
    if (keys.extra or values.extra) and (head_size % BLOCK or head_size > BLOCK * SCALES // 2):
        raise RequestError(
            f"kv is {kv!r}: quantized caches need heads of 32, 64, ... or 256 values, those of the model have {head_size}; "
            "use f16"
        )
    if keys.dtype == np.uint8 and head_size & head_size - 1:
        raise RequestError(
            f"kv is {kv!r}: keys of q4_0 need heads of 32, 64, 128 or 256 values, those of the model have {head_size}; "
            "use q8_0 for keys"
        )


def drafter_kv(kv: str) -> str:
    """Return the type for the cache of a drafter: that of its target, or f16 if the target's is quantized or mixed."""
    return kv if kv in ("f16", "f32") else "f16"


def head_size(cache: Any) -> int:
    """Return the number of values of a head in a cache, a NumPy or CuPy array."""
    kind = _STORAGE.get(np.dtype(cache.dtype), KvType(cache.dtype))
    return (int(cache.shape[-1]) - kind.extra) * kind.each


def head_elements(cache: Any, head_size: int) -> int:
    """Return the stored elements of a head of `head_size` values in a cache of the type of another one."""
    return _STORAGE.get(np.dtype(cache.dtype), KvType(cache.dtype)).head_elements(head_size)


def value_bits(cache: Any) -> int:
    """Return the bits of a stored value, without its share of a scale: 32, 16, 8 for q8_0, or 4 for q4_0."""
    return int(8 * cache.dtype.itemsize) // _STORAGE.get(np.dtype(cache.dtype), KvType(cache.dtype)).each


def is_quantized(cache: Any) -> bool:
    """Return whether a cache, a NumPy or CuPy array, is q8_0 or q4_0."""
    return value_bits(cache) <= 8


_STORAGE = {np.dtype(kind.dtype): kind for kind in KV_TYPES.values()}


def mixed(heads: NDArray[Any]) -> NDArray[Any]:
    """Return heads (..., D), D a power of two, times the symmetric Hadamard matrix ``H / sqrt(D)``, its own inverse.

    ``H[i, j]`` is -1 if i and j have an odd number of one bits in common, else 1 (Sylvester's order).
    """
    n = heads.shape[-1]
    matrix = np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return heads @ (matrix / np.sqrt(n)).astype(heads.dtype)


def quantize(values: NDArray[np.float32], kv: str = "q8_0") -> NDArray[Any]:
    """Quantize heads to q8_0 or q4_0 with llama.cpp's rounding.

    values: float32 (..., D); d is a multiple of `BLOCK`, at most 256.
    kv: ``"q8_0"`` or ``"q4_0"``.
    Returns: int8 (..., D + SCALES) or uint8 (..., D / 2 + SCALES)

    For each block, all in float32. q8_0: ``scale = max|x| / 127``, ``byte = round(x * (1 / scale))`` with halves away from
    zero. q4_0: ``scale = m / -8`` where m is the element of largest magnitude, the negative one of two that differ in sign
    alone; ``number = min(15, trunc(x * (1 / scale) + 8.5))``. The inverse of a zero scale is zero. The stored scale is
    rounded to float16, at most `MAX_SCALE` or `MAX_SCALE_4` in magnitude.
    """
    n, kind = values.shape[-1], KV_TYPES[kv]
    blocks = values.reshape(*values.shape[:-1], n // BLOCK, BLOCK)
    high, low, four = blocks.max(axis=-1, keepdims=True), blocks.min(axis=-1, keepdims=True), kind.each == 2
    if four:
        scale = np.where(-low >= high, low, high) / np.float32(-8)
    else:
        scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    most = np.float32(MAX_SCALE_4 if four else MAX_SCALE)
    out = np.zeros((*values.shape[:-1], kind.head_elements(n)), kind.dtype)
    if four:
        found = np.minimum(np.trunc(blocks * inverse + np.float32(8.5)), 15).astype(np.uint8)
        packed = found[..., : BLOCK // 2] | found[..., BLOCK // 2 :] << 4
        out[..., : n // 2] = packed.reshape(*values.shape[:-1], n // 2)
    else:
        wanted = (blocks * inverse).astype(np.float64)
        out[..., :n] = np.trunc(wanted + np.copysign(0.5, wanted)).reshape(values.shape)
    stored = np.clip(scale[..., 0], -most, most).astype(np.float16)
    end = kind.head_elements(n) - SCALES
    out[..., end : end + 2 * stored.shape[-1]] = stored.view(kind.dtype)
    return out


def numbers(cache: NDArray[Any]) -> NDArray[Any]:
    """Return the values of a cache or of some of its heads: float16 or float32 (..., D)."""
    if cache.dtype not in (np.int8, np.uint8):
        return cache.view(np.float16) if cache.dtype == np.uint16 else cache
    n, end = head_size(cache), cache.shape[-1] - SCALES
    scales = np.ascontiguousarray(cache[..., end : end + n // BLOCK * 2]).view(np.float16).astype(np.float32)
    values = cache[..., :end].astype(np.float32)
    if cache.dtype == np.uint8:
        packed = cache[..., :end].reshape(*cache.shape[:-1], n // BLOCK, BLOCK // 2)
        both = np.concatenate([packed & 15, packed >> 4], axis=-1)
        values = both.reshape(*cache.shape[:-1], n).astype(np.float32) - 8
    return (values * np.repeat(scales, BLOCK, axis=-1)).astype(np.float16)
