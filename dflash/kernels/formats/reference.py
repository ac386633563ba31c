"""Definition of each format in NumPy."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.formats.blocks import FP4_TABLE, IQ4_TABLE
from dflash.kernels.formats.types import BLOCKS

Raw = NDArray[np.uint8]
Floats = NDArray[np.float32]


def _f16(raw: Raw, at: int) -> Floats:
    return raw[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _word(raw: Raw, at: int) -> NDArray[np.uint32]:
    return raw[:, at : at + 4].copy().view(np.uint32)


def _nibbles(qs: Raw) -> NDArray[np.int32]:
    return np.concatenate([qs & 15, qs >> 4], axis=1).astype(np.int32)


def _with_fifth_bit(raw: Raw, at: int) -> NDArray[np.int32]:
    bits = (_word(raw, at) >> np.arange(32, dtype=np.uint32)) & 1
    return _nibbles(raw[:, at + 4 :]) | (bits << 4).astype(np.int32)


def _q4_0(raw: Raw) -> Floats:
    return (_nibbles(raw[:, 2:]) - 8).astype(np.float32) * _f16(raw, 0)


def _q4_1(raw: Raw) -> Floats:
    return _nibbles(raw[:, 4:]).astype(np.float32) * _f16(raw, 0) + _f16(raw, 2)


def _q5_0(raw: Raw) -> Floats:
    return (_with_fifth_bit(raw, 2) - 16).astype(np.float32) * _f16(raw, 0)


def _q5_1(raw: Raw) -> Floats:
    return _with_fifth_bit(raw, 4).astype(np.float32) * _f16(raw, 0) + _f16(raw, 2)


def _q8_0(raw: Raw) -> Floats:
    return raw[:, 2:].view(np.int8).astype(np.float32) * _f16(raw, 0)


def _iq4_nl(raw: Raw) -> Floats:
    return np.array(IQ4_TABLE, np.float32)[_nibbles(raw[:, 2:])] * _f16(raw, 0)


def _mxfp4(raw: Raw) -> Floats:
    scale = np.ldexp(np.float32(1), raw[:, :1].astype(np.int32) - 128)
    return np.array(FP4_TABLE, np.float32)[_nibbles(raw[:, 1:])] * scale


def _scales_and_minima(raw: Raw) -> tuple[Floats, Floats]:
    s = raw[:, 4:16]
    scale = np.concatenate([s[:, :4] & 63, (s[:, 8:] & 15) | ((s[:, :4] >> 6) << 4)], axis=1)
    minimum = np.concatenate([s[:, 4:8] & 63, (s[:, 8:] >> 4) | ((s[:, 4:8] >> 6) << 4)], axis=1)
    return _f16(raw, 0) * scale.astype(np.float32), _f16(raw, 2) * minimum.astype(np.float32)


def _sub_blocks(q: NDArray[np.integer], scale: Floats, minimum: Floats | float = 0.0) -> Floats:
    """Scale the sub-blocks of a row of 256, each with its own scale and minimum."""
    parts = q.astype(np.float32).reshape(len(q), scale.shape[1], -1) * scale[:, :, None]
    if isinstance(minimum, np.ndarray):
        parts -= minimum[:, :, None]
    return parts.reshape(len(q), -1)


def _pairs_of_nibbles(qs: Raw) -> Raw:
    """Return 32 low nibbles, then the 32 high nibbles of the same bytes, four times."""
    groups = qs.reshape(len(qs), 4, 1, 32)
    return np.concatenate([groups & 15, groups >> 4], axis=2).reshape(len(qs), 256)


def _crumbs(qs: Raw) -> Raw:
    """Return the pairs of bits of 32 bytes, from the lowest pair to the highest, for each half of the bytes."""
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    return ((qs.reshape(len(qs), 2, 1, 32) >> shifts) & np.uint8(3)).reshape(len(qs), 256)


def _q4_k(raw: Raw) -> Floats:
    return _sub_blocks(_pairs_of_nibbles(raw[:, 16:]), *_scales_and_minima(raw))


def _q5_k(raw: Raw) -> Floats:
    fifth = (raw[:, 16:48].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)) & 1
    q = _pairs_of_nibbles(raw[:, 48:]) | (fifth.reshape(len(raw), 256) << 4)
    return _sub_blocks(q, *_scales_and_minima(raw))


def _q6_k(raw: Raw) -> Floats:
    both = raw[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([both & 15, both >> 4], axis=2).reshape(len(raw), 256)
    q = (low | (_crumbs(raw[:, 128:192]) << 4)).astype(np.int32) - 32
    return _sub_blocks(q, _f16(raw, 208) * raw[:, 192:208].view(np.int8).astype(np.float32))


def _q2_k(raw: Raw) -> Floats:
    s = raw[:, :16]
    scale, minimum = (s & 15).astype(np.float32), (s >> 4).astype(np.float32)
    return _sub_blocks(_crumbs(raw[:, 16:80]), _f16(raw, 80) * scale, _f16(raw, 82) * minimum)


def _q3_k(raw: Raw) -> Floats:
    s = raw[:, 96:108]
    low = np.concatenate([s[:, :8] & 15, s[:, :8] >> 4], axis=1)
    high = ((s[:, None, 8:] >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 4, 1)) & 3).reshape(-1, 16)
    scale = ((low | (high << 4)).astype(np.int32) - 32).astype(np.float32)
    third = (raw[:, :32].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)) & 1
    q = (_crumbs(raw[:, 32:96]) | (third.reshape(len(raw), 256) << 2)).astype(np.int32) - 4
    return _sub_blocks(q, _f16(raw, 108) * scale)


def _iq4_xs(raw: Raw) -> Floats:
    b = np.arange(8)
    low = (raw[:, 4 + b // 2] >> (4 * (b % 2)).astype(np.uint8)) & 15
    high = ((raw[:, 2:4].copy().view(np.uint16) >> (2 * b).astype(np.uint16)) & 3).astype(np.uint8)
    scale = _f16(raw, 0) * ((low | (high << 4)).astype(np.int32) - 32).astype(np.float32)
    qs = raw[:, 8:].reshape(-1, 8, 1, 16)
    q = np.concatenate([qs & 15, qs >> 4], axis=2).reshape(len(raw), 256)
    return _sub_blocks(np.array(IQ4_TABLE, np.int32)[q], scale)


_BLOCKS = _q4_0, _q4_1, _q5_0, _q5_1, _q8_0, _q2_k, _q3_k, _q4_k, _q5_k, _q6_k, _iq4_nl, _iq4_xs, _mxfp4
_UNPACK: dict[str, Callable[[Raw], Floats]] = {
    "F32": lambda raw: raw.view(np.float32),
    "F16": lambda raw: raw.view(np.float16).astype(np.float32),
    "BF16": lambda raw: (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32),
    **{definition.__name__[1:].upper(): definition for definition in _BLOCKS},
}


def unpack(data: Raw, kind: str) -> Floats:
    """Unpack rows of blocks to float32.

    Parameters
    ----------
    data : uint8 (..., row_bytes)
        Rows of whole blocks.
    kind : str
        Native format, a key of `dflash.kernels.formats.FORMATS`.

    Returns
    -------
    float32 (..., K)
        Exact values of the weights.
    """
    block = BLOCKS[kind]
    blocks = np.ascontiguousarray(data).reshape(-1, block.n_bytes)
    n = data.shape[-1] // block.n_bytes * block.elements
    return _UNPACK[kind](blocks).reshape(*data.shape[:-1], n)
