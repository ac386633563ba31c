"""Attention over one page of the cache: largest score, sum of weights and weighted values.

A *record* is the result of one query (a row and a head) over a page, or over all pages so far: `width` weighted values,
then 16 lanes that all hold the largest score, then 16 lanes that all hold the sum of weights.
"""

import numpy as np

from dflash.kernels.attention import tiles
from dflash.kernels.cpu import simd
from dflash.kernels.cpu.jit import inline
from dflash.kernels.ragged import PAGE

NOTHING = np.float32(-np.inf)


@inline
def _score(k, places, head, width, queries, counts, first, last, scores):
    """Compute the scores of queries first .. last - 1; a query sees ``counts[query]`` places, a later query no fewer."""
    stride, lines, j = 4 * width, width // 16, first
    while j < last:
        many = 4 if last - j >= 4 else 2 if last - j >= 2 else 1
        q, out = queries + stride * j, scores + 4 * PAGE * j
        most = counts[j + many - 1]
        if many == 4:
            for i in range(0, most, 4):
                tiles.scores_4x4(k, places + 8 * i, head, q, stride, lines, out + 4 * i)
        elif many == 2:
            for i in range(0, most, 8):
                tiles.scores_8x2(k, places + 8 * i, head, q, stride, lines, out + 4 * i)
        else:
            for i in range(0, most, 16):
                tiles.scores_16x1(k, places + 8 * i, head, q, stride, lines, out + 4 * i)
        j += many


@inline
def _soften(scores, count, width, record):
    """Turn `count` scores into weights, ``simd.exp(score - largest)``; write the largest and the sum to the record."""
    end = (count + 15) // 16 * 16
    for i in range(count, end):
        simd.write_f32(scores + 4 * i, NOTHING)
    top = simd.load_f32(scores)
    for i in range(16, end, 16):
        top = simd.maximum(top, simd.load_f32(scores + 4 * i))
    top = simd.splat(simd.hmax(top))
    total = simd.zeros()
    for i in range(0, end, 16):
        weight = simd.exp(simd.sub(simd.load_f32(scores + 4 * i), top))
        simd.store_f32(scores + 4 * i, weight)
        total = simd.add(total, weight)
    simd.store_f32(record + 4 * width, top)
    simd.store_f32(record + 4 * (width + 16), simd.splat(simd.hsum(total)))


@inline
def _blend_some(v, places, head, width, many, n, weights, out, stride):
    """Add the weighted values of `n` places to the records of `many` (1, 2 or 4) queries."""
    i = 0
    if many == 4:
        while i + 64 <= width:
            tiles.blend_4x4(v, places, head, i, n, weights, out + 4 * i, stride)
            i += 64
        while i < width:
            tiles.blend_4x1(v, places, head, i, n, weights, out + 4 * i, stride)
            i += 16
    elif many == 2:
        while i + 128 <= width:
            tiles.blend_2x8(v, places, head, i, n, weights, out + 4 * i, stride)
            i += 128
        while i < width:
            tiles.blend_2x1(v, places, head, i, n, weights, out + 4 * i, stride)
            i += 16
    else:
        while i + 128 <= width:
            tiles.blend_1x8(v, places, head, i, n, weights, out + 4 * i, stride)
            i += 128
        while i < width:
            tiles.blend_1x1(v, places, head, i, n, weights, out + 4 * i, stride)
            i += 16


@inline
def _blend(v, places, head, width, counts, first, last, scores, records):
    """Sum the values of queries first .. last - 1; places that only some queries of a tile see are added one by one."""
    stride, j = 4 * (width + 32), first
    while j < last:
        many = 4 if last - j >= 4 else 2 if last - j >= 2 else 1
        shared = counts[j]
        for e in range(j, j + many):
            for i in range(0, width, 16):
                simd.store_f32(records + stride * e + 4 * i, simd.zeros())
        _blend_some(v, places, head, width, many, shared, scores + 4 * PAGE * j, records + stride * j, stride)
        for e in range(j + 1, j + many):
            rest = counts[e] - shared
            if rest > 0:
                weights, out = scores + 4 * (PAGE * e + shared), records + stride * e
                _blend_some(v, places + 8 * shared, head, width, 1, rest, weights, out, stride)
        j += many


@inline
def read_page(k, v, places, head, width, queries, counts, first, last, scores, records):
    """Compute the records of queries first .. last - 1, which share the places of a page, by a head of the cache."""
    _score(k, places, head, width, queries, counts, first, last, scores)
    for j in range(first, last):
        _soften(scores + 4 * PAGE * j, counts[j], width, records + 4 * (width + 32) * j)
    _blend(v, places, head, width, counts, first, last, scores, records)


@inline
def read_window(k, v, places, head, width, queries, counts, begins, group, first, last, scores, records):
    """Compute records as `read_page`, but query j sees nothing before place ``begins[j // group]``.

    Places that are not seen get a weight of 0, so that the others have the weights and the order of sums of `read_page`.
    """
    _score(k, places, head, width, queries, counts, first, last, scores)
    for j in range(first, last):
        own, record, n = scores + 4 * PAGE * j, records + 4 * (width + 32) * j, counts[j]
        begin = begins[j // group]
        if begin < n:
            for i in range(begin):
                simd.write_f32(own + 4 * i, NOTHING)
            _soften(own, n, width, record)
        else:
            for i in range(n):
                simd.write_f32(own + 4 * i, np.float32(0))
    _blend(v, places, head, width, counts, first, last, scores, records)


@inline
def gather(q, first, step, head, group, n, queries):
    """Copy `n` queries side by side, scaled: those of `group` heads from `head` on, in rows first, first + step, ..."""
    heads, width = q.shape[1], q.shape[2]
    scale = simd.splat(np.float32(1.0 / np.sqrt(width)))
    for j in range(n):
        source = q.ctypes.data + 4 * width * ((first + step * (j // group)) * heads + head + j % group)
        for i in range(0, width, 16):
            simd.store_f32(queries + 4 * (width * j + i), simd.mul(simd.load_f32(source + 4 * i), scale))


@inline
def clear(record, width):
    """Initialise a record for no pages."""
    for i in range(0, width + 32, 16):
        simd.store_f32(record + 4 * i, simd.zeros())
    simd.store_f32(record + 4 * width, simd.splat(NOTHING))


@inline
def merge(record, later, width):
    """Merge the record of the next page into the record of all pages before it."""
    old, new = simd.load_f32(record + 4 * width), simd.load_f32(later + 4 * width)
    top = simd.maximum(old, new)
    a, b = simd.exp(simd.sub(old, top)), simd.exp(simd.sub(new, top))
    for i in range(0, width, 16):
        simd.store_f32(record + 4 * i, simd.fma(simd.load_f32(record + 4 * i), a, simd.mul(simd.load_f32(later + 4 * i), b)))
    total = 4 * (width + 16)
    simd.store_f32(record + total, simd.fma(simd.load_f32(record + total), a, simd.mul(simd.load_f32(later + total), b)))
    simd.store_f32(record + 4 * width, top)


@inline
def finish(record, width, gate, out):
    """Divide by the sum of weights, and multiply by the sigmoid of a gate unless its address is 0."""
    total = simd.load_f32(record + 4 * (width + 16))
    for i in range(0, width, 16):
        value = simd.div(simd.load_f32(record + 4 * i), total)
        if gate != 0:
            value = simd.mul(value, simd.sigmoid(simd.load_f32(gate + 4 * i)))
        simd.store_f32(out + 4 * i, value)
