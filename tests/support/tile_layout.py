"""Tiles of weights in NumPy, as `quants.cuh` describes them: slow and obvious."""

import numpy as np

from dflash.kernels.formats import BLOCKS

ROWS = 16
LOW = {"F32": 32, "F16": 16, "BF16": 16, "Q8_0": 8, "Q2_K": 2, "Q3_K": 2}
HIGH = {"Q5_0": 1, "Q5_1": 1, "Q5_K": 1, "Q3_K": 1, "Q6_K": 2}


def _bits(data, at, count, shift, mask):
    """Field of `mask` at `shift` of `count` bytes from byte `at` of each block."""
    return (data[:, at : at + count].astype(np.uint32) >> shift) & mask


def _nibbles(data, at):
    return np.concatenate([_bits(data, at, 16, 0, 15), _bits(data, at, 16, 4, 15)], axis=1)


def _fifths(data, at):
    return np.concatenate([_bits(data, at + i, 1, shift, 1) for i in range(4) for shift in range(8)], axis=1) << 4


def _halves_of_32(data, at):
    """Nibbles of 32 weights, then the upper nibbles of the same bytes."""
    parts = [_bits(data, at + 32 * i, 32, shift, 15) for i in range(4) for shift in (0, 4)]
    return np.concatenate(parts, axis=1)


def _crumbs(data, at):
    parts = [_bits(data, at + 32 * i, 32, shift, 3) for i in range(2) for shift in (0, 2, 4, 6)]
    return np.concatenate(parts, axis=1)


def _single_bits(data, at):
    return np.concatenate([_bits(data, at, 32, shift, 1) for shift in range(8)], axis=1)


def _q6(data):
    low = [_bits(data, 64 * i + 32 * j, 32, shift, 15) for i in range(2) for shift in (0, 4) for j in range(2)]
    return np.concatenate(low, axis=1) | _crumbs(data, 128) << 4


CODES = {
    "F32": lambda d: d.view(np.uint32),
    "F16": lambda d: d.view(np.uint16).astype(np.uint32),
    "BF16": lambda d: _rounded(d.view(np.uint16)),
    "Q4_0": lambda d: _nibbles(d, 2),
    "Q4_1": lambda d: _nibbles(d, 4),
    "Q5_0": lambda d: _nibbles(d, 6) | _fifths(d, 2),
    "Q5_1": lambda d: _nibbles(d, 8) | _fifths(d, 4),
    "Q8_0": lambda d: _bits(d, 2, 32, 0, 255) ^ 128,
    "IQ4_NL": lambda d: _nibbles(d, 2),
    "MXFP4": lambda d: _nibbles(d, 1),
    "Q4_K": lambda d: _halves_of_32(d, 16),
    "Q5_K": lambda d: _halves_of_32(d, 48) | _single_bits(d, 16) << 4,
    "Q6_K": _q6,
    "Q2_K": lambda d: _crumbs(d, 16),
    "Q3_K": lambda d: _crumbs(d, 32) | _single_bits(d, 0) << 2,
    "IQ4_XS": lambda d: np.concatenate([_nibbles(d, 8 + 16 * i) for i in range(8)], axis=1),
}


def _rounded(bf16):
    values = (bf16.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float16).view(np.uint16).astype(np.uint32)


def _pack(words, shifts):
    """Fields (..., n) shifted to their places and joined."""
    return np.bitwise_or.reduce(words << np.asarray(shifts, np.uint32), axis=-1)


def _planes(kind, codes):
    """Bytes (tiles, n) of the planes of codes (tiles, 16, TILE_K)."""
    n, _, width = codes.shape
    if kind == "Q6_K":  # halves of 16, lanes, runs of four
        lanes = codes.reshape(n, 2, 8, width // 32, 2, 4, 4).transpose(0, 3, 2, 5, 1, 4, 6)
    else:
        lanes = codes.reshape(n, 2, 8, width // 32, 4, 8).transpose(0, 3, 2, 4, 1, 5)
    lanes = lanes.reshape(n, width // 32, 32, 2, 8)  # block, lane, r, weight
    low, high = LOW.get(kind, 4), HIGH.get(kind, 0)
    pair, odd = np.divmod(np.arange(8), 2)
    r = np.arange(2)[:, None]
    of_two = 16 * odd + 8 * r + (2 * (pair // 2) + 4 * (pair % 2) if low == 4 else 2 * pair)
    if low == 32:
        planes = [lanes.reshape(n, width // 32, 32, 2, 2, 4).transpose(0, 1, 3, 4, 2, 5)]
    elif low == 16:
        planes = [_pack(lanes.reshape(n, width // 32, 32, 2, 4, 2), [0, 16]).transpose(0, 1, 3, 2, 4)]
    elif low == 8:
        planes = [_pack(lanes.reshape(n, width // 32, 32, 2, 2, 4), [0, 16, 8, 24])]
    elif low == 4:
        planes = [_pack(lanes & 15, 16 * odd + 4 * pair)]
    else:
        planes = [_pack((lanes & 3).reshape(*lanes.shape[:3], 16), (16 * odd + 8 * r + 2 * pair).reshape(-1))]
    above = lanes >> low if high else lanes
    if high == 2:
        planes.append(_pack(above.reshape(*lanes.shape[:3], 16), of_two.reshape(-1)))
    elif high == 1:
        both = above.reshape(n, width // 64, 2, 32, 2, 8).transpose(0, 1, 3, 2, 4, 5).reshape(n, width // 64, 32, 32)
        places = [8 * b + 4 * i + p + 16 * o for b in range(2) for i in range(2) for p, o in zip(pair, odd, strict=True)]
        planes.append(_pack(both, places))
    flat = [np.ascontiguousarray(p).reshape(n, -1).astype(np.uint32) for p in planes]
    return np.concatenate(flat, axis=1).view(np.uint8)


def _six_bits(blocks):
    """Scales of K-quants with minima: blocks (tiles, 16, bytes) to 256 bytes a tile."""
    s = blocks[:, :, 4:16].astype(np.int32)
    scale = np.concatenate([s[..., :4] & 63, s[..., 8:] & 15 | s[..., :4] >> 6 << 4], axis=-1)
    minimum = np.concatenate([s[..., 4:8] & 63, s[..., 8:] >> 4 | s[..., 4:8] >> 6 << 4], axis=-1)

    def of_lanes(values):  # (tiles, r, g, t, i) to (tiles, lane, r, i)
        return values.reshape(-1, 2, 8, 4, 2).transpose(0, 2, 3, 1, 4).reshape(-1, 32, 4)

    first = of_lanes(scale | minimum >> 4 << 6)
    low = of_lanes(minimum & 15)
    second = np.stack([low[..., 0] | low[..., 1] << 4, low[..., 2] | low[..., 3] << 4], axis=-1)
    rows = blocks[:, :, :4].reshape(-1, 2, 8, 4).transpose(0, 2, 1, 3)
    return [first, second, rows]


def _scales(kind, blocks):
    """Parts of a tile after its planes; blocks (tiles, 16, blocks of a row, bytes)."""
    if BLOCKS[kind].elements == 1:
        return []
    if BLOCKS[kind].elements == 32:
        size = 1 if kind == "MXFP4" else 2
        parts = [blocks[..., :size]]
        return [*parts, blocks[..., 2:4]] if kind in ("Q4_1", "Q5_1") else parts
    of = blocks[:, :, 0]
    if kind in ("Q4_K", "Q5_K"):
        return _six_bits(of)
    if kind == "Q6_K":
        return [of[..., 192:208], of[..., 208:]]
    if kind == "Q2_K":
        return [of[..., :16], of[..., 80:]]
    if kind == "Q3_K":
        return [of[..., 96:108], of[..., 108:]]
    return [of[..., :8]]


def tiles(matrix):
    """The bytes of `PackedWeight(matrix)` (R, K), K a multiple of a tile."""
    block = BLOCKS[matrix.type]
    rows, width = matrix.shape
    tile = 64 if block.elements == 1 else 256
    whole = np.zeros((-(-rows // ROWS) * ROWS, matrix.row_bytes), np.uint8)
    whole[:rows] = matrix.data
    codes = CODES[matrix.type](whole.reshape(-1, block.n_bytes)).reshape(len(whole), width)
    if matrix.type == "MXFP4" or rows < len(whole):
        codes[rows:] = 0  # past the matrix there are no blocks
    codes = codes.reshape(-1, ROWS, width // tile, tile).transpose(0, 2, 1, 3).reshape(-1, ROWS, tile)
    blocks = whole.reshape(-1, ROWS, width // tile, tile // block.elements, block.n_bytes).transpose(0, 2, 1, 3, 4)
    blocks = blocks.reshape(-1, *blocks.shape[2:])
    if matrix.type == "Q6_K":
        blocks = blocks.copy()
        blocks[..., 192:208] ^= 128
    past = np.arange(len(whole)).reshape(-1, 1, ROWS).repeat(width // tile, 1).reshape(-1, ROWS) >= rows
    scales = _scales(matrix.type, np.where(past[..., None, None], 0, blocks))
    parts = [np.asarray(part, np.uint8).reshape(len(codes), -1) for part in scales]
    return np.concatenate([_planes(matrix.type, codes), *parts], axis=1).reshape(-1)
