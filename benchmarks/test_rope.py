"""Norm, rotation, cache: a token, a draft, a chunk of a prompt. ``pytest benchmarks/test_rope.py`` prints µs and GB/s."""

import numpy as np
import pytest
from batches import chain, ragged
from compare import assert_close

from dflash.kernels.ragged import PAGE
from dflash.kernels.rope import angles, reference, rotate


def arguments(n, heads, kv, width=256, pairs=32):
    rng = np.random.default_rng(1)
    rows = ragged([(500, chain(n), False)])
    shapes = (n, heads * 2 * width), (n, kv * width), (n, kv * width), (width,), (width,)
    cos, sin = np.empty((2, n, pairs), np.float32)
    angles(500 + rows.depth, (1e7 ** (-np.arange(pairs) / pairs)).astype(np.float32), cos=cos, sin=sin)
    inputs = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    q = np.empty((n, heads, width), np.float32)
    k, v = np.zeros((2, rows.pages.max() + 1, PAGE, kv, width), np.uint16)
    return (*inputs, cos, sin, rows), {"eps": 1e-6, "q": q, "k": k, "v": v}


@pytest.mark.parametrize(("heads", "kv"), [(4, 2), (24, 4)], ids=["4-over-2", "24-over-4"])
@pytest.mark.parametrize("n", [1, 16, 512])
def test_rotate(benchmark, capsys, n, heads, kv):
    args, outs = arguments(n, heads, kv)
    rotate(*args, **outs)
    want = np.empty_like(outs["q"])
    reference.rotate(*args, **{**outs, "q": want, "k": outs["k"].copy(), "v": outs["v"].copy()})
    assert_close("q", outs["q"], want, 1e-6)
    benchmark.pedantic(rotate, args, outs, rounds=100, warmup_rounds=3)
    seconds, moved = benchmark.stats.stats.median, n * 256 * (8 * heads + 6 * 2 * kv)
    with capsys.disabled():
        print(f"\nrotate {heads} over {kv} heads, {n} rows: {seconds * 1e6:.1f} µs, {moved / seconds / 1e9:.1f} GB/s")


@pytest.mark.parametrize("n", [1, 512])
def test_angles(benchmark, capsys, n):
    positions, inv_freq = np.arange(n, dtype=np.int32), np.ones(32, np.float32)
    tables = dict(zip(("cos", "sin"), np.empty((2, n, 32), np.float32), strict=True))
    benchmark.pedantic(angles, (positions, inv_freq), tables, rounds=100, warmup_rounds=3)
    with capsys.disabled():
        print(f"\nangles, {n} rows of 32 pairs: {benchmark.stats.stats.median * 1e6:.1f} µs")
