"""Definition of each format in NumPy."""

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.formats.blocks import FP4_TABLE, IQ4_TABLE

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


def q4_0(raw: Raw) -> Floats:
    """Unpack blocks of Q4_0; `neighbours.q4_0` has the formula."""
    return (_nibbles(raw[:, 2:]) - 8).astype(np.float32) * _f16(raw, 0)


def q4_1(raw: Raw) -> Floats:
    """Unpack blocks of Q4_1; `neighbours.q4_1` has the formula."""
    return _nibbles(raw[:, 4:]).astype(np.float32) * _f16(raw, 0) + _f16(raw, 2)


def q5_0(raw: Raw) -> Floats:
    """Unpack blocks of Q5_0; `neighbours.q5_0` has the formula."""
    return (_with_fifth_bit(raw, 2) - 16).astype(np.float32) * _f16(raw, 0)


def q5_1(raw: Raw) -> Floats:
    """Unpack blocks of Q5_1; `neighbours.q5_1` has the formula."""
    return _with_fifth_bit(raw, 4).astype(np.float32) * _f16(raw, 0) + _f16(raw, 2)


def q8_0(raw: Raw) -> Floats:
    """Unpack blocks of Q8_0; `neighbours.q8_0` has the formula."""
    return raw[:, 2:].view(np.int8).astype(np.float32) * _f16(raw, 0)


def iq4_nl(raw: Raw) -> Floats:
    """Unpack blocks of IQ4_NL; `neighbours.iq4_nl` has the formula."""
    return np.array(IQ4_TABLE, np.float32)[_nibbles(raw[:, 2:])] * _f16(raw, 0)


def mxfp4(raw: Raw) -> Floats:
    """Unpack blocks of MXFP4; `neighbours.mxfp4` has the formula."""
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


def q4_k(raw: Raw) -> Floats:
    """Unpack blocks of Q4_K; `integers.q4_k` has the formula."""
    return _sub_blocks(_pairs_of_nibbles(raw[:, 16:]), *_scales_and_minima(raw))


def q5_k(raw: Raw) -> Floats:
    """Unpack blocks of Q5_K; `integers.q5_k` has the formula."""
    fifth = (raw[:, 16:48].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)) & 1
    q = _pairs_of_nibbles(raw[:, 48:]) | (fifth.reshape(len(raw), 256) << 4)
    return _sub_blocks(q, *_scales_and_minima(raw))


def q6_k(raw: Raw) -> Floats:
    """Unpack blocks of Q6_K; `integers.q6_k` has the formula."""
    both = raw[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([both & 15, both >> 4], axis=2).reshape(len(raw), 256)
    q = (low | (_crumbs(raw[:, 128:192]) << 4)).astype(np.int32) - 32
    return _sub_blocks(q, _f16(raw, 208) * raw[:, 192:208].view(np.int8).astype(np.float32))


def q2_k(raw: Raw) -> Floats:
    """Unpack blocks of Q2_K; `integers.q2_k` has the formula."""
    s = raw[:, :16]
    scale, minimum = (s & 15).astype(np.float32), (s >> 4).astype(np.float32)
    return _sub_blocks(_crumbs(raw[:, 16:80]), _f16(raw, 80) * scale, _f16(raw, 82) * minimum)


def q3_k(raw: Raw) -> Floats:
    """Unpack blocks of Q3_K; `integers.q3_k` has the formula."""
    s = raw[:, 96:108]
    low = np.concatenate([s[:, :8] & 15, s[:, :8] >> 4], axis=1)
    high = ((s[:, None, 8:] >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 4, 1)) & 3).reshape(-1, 16)
    scale = ((low | (high << 4)).astype(np.int32) - 32).astype(np.float32)
    third = (raw[:, :32].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)) & 1
    q = (_crumbs(raw[:, 32:96]) | (third.reshape(len(raw), 256) << 2)).astype(np.int32) - 4
    return _sub_blocks(q, _f16(raw, 108) * scale)


def iq4_xs(raw: Raw) -> Floats:
    """Unpack blocks of IQ4_XS; `integers.iq4_xs` has the formula."""
    b = np.arange(8)
    low = (raw[:, 4 + b // 2] >> (4 * (b % 2)).astype(np.uint8)) & 15
    high = ((raw[:, 2:4].copy().view(np.uint16) >> (2 * b).astype(np.uint16)) & 3).astype(np.uint8)
    scale = _f16(raw, 0) * ((low | (high << 4)).astype(np.int32) - 32).astype(np.float32)
    qs = raw[:, 8:].reshape(-1, 8, 1, 16)
    q = np.concatenate([qs & 15, qs >> 4], axis=2).reshape(len(raw), 256)
    return _sub_blocks(np.array(IQ4_TABLE, np.int32)[q], scale)


def f32(raw: Raw) -> Floats:
    """Return float32 as it is."""
    return raw.view(np.float32)


def f16(raw: Raw) -> Floats:
    """Return float16 as float32."""
    return raw.view(np.float16).astype(np.float32)


def bf16(raw: Raw) -> Floats:
    """Return bfloat16, the upper halves of float32."""
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
