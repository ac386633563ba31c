"""Norm, rotation and cache writes in numba; a task is a row."""

import numpy as np
from numba import prange

from dflash.kernels.cpu import simd
from dflash.kernels.cpu.jit import inline, kernel
from dflash.kernels.kv_types import BLOCK, MAX_SCALE, MAX_SCALE_4, SCALES
from dflash.kernels.ragged import PAGE

_SERIAL = 1 << 14
"""Elements below which one thread is faster than waking the others."""

NONE = 0
"""Address that stands for no gain or no bias."""


def angles(positions, inv_freq, *, cos, sin, sections=None):
    """See the package."""
    if positions.ndim == 1:
        positions = positions.reshape(1, -1)
    _, height, width = (0, 0, 0) if len(positions) == 1 else sections[:3]
    _angles(positions, inv_freq, height, width, cos, sin)


def rotate(query, key, value, q_norm, k_norm, cos, sin, rows, *, eps, q, k, v, bias=None):
    """See the package."""
    first, sequence, length, pages = rows.row_starts, rows.sequence, rows.length, rows.pages
    weights = tuple(NONE if weight is None else weight.ctypes.data for weight in (q_norm, k_norm, bias))
    rotate_rows(query, key, value, *weights, cos, sin, first, sequence, length, pages, float(eps), q, k, v)


def turn(x, norm, cos, sin, *, eps, mixes=False):
    """See the package."""
    _turn_rows(x, norm, cos, sin, np.float32(eps), mixes)


@inline
def angles_of_row(positions, inv_freq, height, width, cos, sin, row):
    """Compute the tables of one row."""
    for j in range(inv_freq.size):
        axis = 0
        if j % 3 == 1 and j < 3 * height:
            axis = 1
        elif j % 3 == 2 and j < 3 * width:
            axis = 2
        angle = np.float64(np.float32(positions[axis, row]) * inv_freq[j])
        cos[row, j], sin[row, j] = np.cos(angle), np.sin(angle)


@kernel
def _angles(positions, inv_freq, height, width, cos, sin):
    n = positions.shape[1]
    if n < 4:
        for row in range(n):
            angles_of_row(positions, inv_freq, height, width, cos, sin, row)
    else:
        for row in prange(n):
            angles_of_row(positions, inv_freq, height, width, cos, sin, row)


@inline
def _turn(source, bias, weight, eps, width, cos, sin, half, out):
    """Add a bias to a head at an address and norm it, each unless its address is 0; rotate ``2 * half`` elements."""
    squares = simd.zeros()
    for i in range(0, 4 * width, 64):
        x = simd.load_f32(source + i)
        if bias != NONE:
            x = simd.add(x, simd.load_f32(bias + i))
        squares = simd.fma(x, x, squares)
        simd.store_f32(out + i, x)
    if weight != NONE:
        scale = simd.splat(np.float32(1.0) / np.sqrt(simd.hsum(squares) / np.float32(width) + eps))
        for i in range(0, 4 * width, 64):
            simd.store_f32(out + i, simd.mul(simd.mul(simd.load_f32(out + i), scale), simd.load_f32(weight + i)))
    i = 0
    while i + 16 <= half:
        left, right = out + 4 * i, out + 4 * (i + half)
        x, y, c, s = simd.load_f32(left), simd.load_f32(right), simd.load_f32(cos + 4 * i), simd.load_f32(sin + 4 * i)
        simd.store_f32(left, simd.sub(simd.mul(x, c), simd.mul(y, s)))
        simd.store_f32(right, simd.add(simd.mul(y, c), simd.mul(x, s)))
        i += 16
    while i < half:
        left, right = out + 4 * i, out + 4 * (i + half)
        x1, y1, c1, s1 = simd.read_f32(left), simd.read_f32(right), simd.read_f32(cos + 4 * i), simd.read_f32(sin + 4 * i)
        simd.write_f32(left, x1 * c1 - y1 * s1)
        simd.write_f32(right, y1 * c1 + x1 * s1)
        i += 1


@inline
def _quantize(source, width, target):
    """Write a head of `width` float32 as q8_0."""
    for i in range(0, width, BLOCK):
        scale = simd.store_q8_0(target + i, simd.load_f32(source + 4 * i), simd.load_f32(source + 4 * i + 64))
        simd.write_f16(target + width + i // BLOCK * 2, min(scale, np.float32(MAX_SCALE)))
    for i in range(width // BLOCK * 2, SCALES, 2):
        simd.write_f16(target + width + i, np.float32(0))


@inline
def _quantize_4(source, width, target):
    """Write a head of `width` float32 as q4_0."""
    most = np.float32(MAX_SCALE_4)
    for i in range(0, width, BLOCK):
        scale = simd.store_q4_0(target + i // 2, simd.load_f32(source + 4 * i), simd.load_f32(source + 4 * i + 64))
        simd.write_f16(target + width // 2 + i // BLOCK * 2, min(max(scale, -most), most))
    for i in range(width // BLOCK * 2, SCALES, 2):
        simd.write_f16(target + width // 2 + i, np.float32(0))


@inline
def _is_q4_0(cache, width):
    """Return whether heads of `width` values are q4_0 in a cache."""
    return cache.itemsize == 1 and 2 * (cache.shape[3] - SCALES) == width


@inline
def _mix(head, width):
    """Multiply a head at an address by the Hadamard matrix of `dflash.kernels.kv_types.mixed`."""
    half = 1
    while half < width:
        for start in range(0, width, 2 * half):
            for i in range(start, start + half):
                x, y = simd.read_f32(head + 4 * i), simd.read_f32(head + 4 * (i + half))
                simd.write_f32(head + 4 * i, x + y)
                simd.write_f32(head + 4 * (i + half), x - y)
        half *= 2
    scale = np.float32(1.0 / np.sqrt(width))
    for i in range(width):
        simd.write_f32(head + 4 * i, simd.read_f32(head + 4 * i) * scale)


@inline
def write_row(source, n, cache, place):
    """Write `n` float32 at an address to row `place` of a cache: uint16 is float16, int8 is q8_0, uint8 is q4_0."""
    if cache.itemsize == 1:
        heads, stored = cache.shape[2], cache.shape[3]
        width = n // heads
        for head in range(heads):
            target = cache.ctypes.data + stored * (heads * place + head)
            if _is_q4_0(cache, width):
                _quantize_4(source + 4 * head * width, width, target)
            else:
                _quantize(source + 4 * head * width, width, target)
        return
    target = cache.ctypes.data + cache.itemsize * n * place
    for i in range(0, n, 16):
        if cache.itemsize == 2:
            simd.store_f16(target + 2 * i, simd.load_f32(source + 4 * i))
        else:
            simd.store_f32(target + 4 * i, simd.load_f32(source + 4 * i))


@inline
def rotate_row(query, key, value, q_norm, k_norm, bias, cos, sin, first, sequence, length, pages, eps, q, k, v, row, keys):
    """Rotate one row and write it to the caches; `keys` has room for its keys. Gains and biases are addresses or 0."""
    heads, width, half = q.shape[1], q.shape[2], cos.shape[1]
    many, mixes = k.shape[2], _is_q4_0(k, q.shape[2])
    c, s = cos.ctypes.data + 4 * half * row, sin.ctypes.data + 4 * half * row
    step, biased = query.shape[1] // heads, 0 if bias == NONE else 4 * width
    for head in range(heads):
        source = query.ctypes.data + 4 * (query.shape[1] * row + step * head)
        out = q.ctypes.data + 4 * width * (heads * row + head)
        _turn(source, bias + biased * head, q_norm, eps, width, c, s, half, out)
        if mixes:
            _mix(out, width)
    of_keys = bias + biased * heads
    for head in range(many):
        source = key.ctypes.data + 4 * width * (many * row + head)
        out = keys.ctypes.data + 4 * width * head
        _turn(source, of_keys + biased * head, k_norm, eps, width, c, s, half, out)
        if mixes:
            _mix(out, width)
    of = sequence[row]
    index = length[of] + row - first[of]
    place = np.int64(pages[of, index // PAGE]) * PAGE + index % PAGE
    write_row(keys.ctypes.data, many * width, k, place)
    values = value.ctypes.data + 4 * many * width * row
    if bias != NONE:
        of_values = of_keys + biased * many
        for i in range(0, 4 * many * width, 64):
            simd.store_f32(keys.ctypes.data + i, simd.add(simd.load_f32(values + i), simd.load_f32(of_values + i)))
        values = keys.ctypes.data
    write_row(values, many * width, v, place)


@kernel
def rotate_rows(query, key, value, q_norm, k_norm, bias, cos, sin, first, sequence, length, pages, eps, q, k, v):
    """See `rotate` of the package."""
    n, eps = len(q), np.float32(eps)
    size = k.shape[2] * q.shape[2]
    weights = q_norm, k_norm, bias
    if n * (q.shape[1] * q.shape[2] + 2 * size) < _SERIAL:
        keys = np.empty(size, np.float32)
        for row in range(n):
            rotate_row(query, key, value, *weights, cos, sin, first, sequence, length, pages, eps, q, k, v, row, keys)
    else:
        for row in prange(n):
            keys = np.empty(size, np.float32)
            rotate_row(query, key, value, *weights, cos, sin, first, sequence, length, pages, eps, q, k, v, row, keys)


@inline
def _turn_row(x, norm, cos, sin, eps, mixes, row):
    heads, width, half = x.shape[1], x.shape[2], cos.shape[1]
    c, s = cos.ctypes.data + 4 * half * row, sin.ctypes.data + 4 * half * row
    for head in range(heads):
        at = x.ctypes.data + 4 * width * (heads * row + head)
        _turn(at, NONE, norm.ctypes.data, eps, width, c, s, half, at)
        if mixes:
            _mix(at, width)


@kernel
def _turn_rows(x, norm, cos, sin, eps, mixes):
    n = len(x)
    if x.size < _SERIAL:
        for row in range(n):
            _turn_row(x, norm, cos, sin, eps, mixes, row)
    else:
        for row in prange(n):
            _turn_row(x, norm, cos, sin, eps, mixes, row)
