"""Norm, rotation and attention of one row in one launch: the bits of `Rotate`, then `Attend`, in the cache, too."""

import numpy as np
import pytest
from batches import batch, fill
from compare import assert_same_bits

from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.gpu.capabilities import capabilities
from dflash.kernels.ragged import PAGE

cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("dflash.kernels.attention.cuda")
row_cuda = pytest.importorskip("dflash.kernels.attention.cuda_fused_decode")
rope_cuda = pytest.importorskip("dflash.kernels.rope.cuda")

SHAPES = {
    "27B": (24, 4, 256, 64, True),
    "35B-A3B": (16, 2, 256, 64, True),
    "0.8B": (8, 2, 256, 64, True),
    "without gates": (32, 8, 128, 128, False),
    "one KV head of 48": (3, 1, 48, 32, True),
    "64 heads for one": (64, 1, 64, 64, False),
    "llama": (9, 3, 64, 64, False, False, False),
    "qwen2": (12, 2, 128, 128, False, False, True),
    "a norm and a bias": (28, 2, 64, 64, False, True, True),
}
POSITIONS = 0, 1, 63, 64, 255, 256, 700, 4223, 8703
NAMES = "key", "value", "heads"


class Row:
    """Arrays of one row at a position, and the ops over them; the cache is NaN where no token is."""

    def __init__(self, position, heads, kv, width, rotated, gated, normed=True, biased=False):
        rng = np.random.default_rng(position)
        rows = batch([(position, 1, "chain")])
        self.batch = DeviceBatch(3, 2, rows.pages.shape[1])
        self.batch.upload(np.zeros(1, np.int32), rows)
        shape = rows.pages.max() + 2, PAGE, kv, width
        cache, index = np.full((2, *shape), np.nan, np.float16), np.arange(position)
        cache[:, rows.pages[0, index // PAGE], index % PAGE] = rng.standard_normal((2, position, kv, width))
        self.caches = [cupy.asarray(some.view(np.uint16)) for some in cache]

        def random(*shape):
            return cupy.asarray(rng.standard_normal(shape, dtype=np.float32))

        query = random(3, heads * width * (2 if gated else 1))
        inputs = query, random(3, kv * width), random(3, kv * width)
        inputs += (random(width), random(width)) if normed else (None, None)
        bias = random((heads + 2 * kv) * width) if biased else None
        angles = rng.uniform(0, 6, (3, rotated // 2))
        tables = cupy.asarray(np.float32(np.cos(angles))), cupy.asarray(np.float32(np.sin(angles)))
        q = cupy.asarray(fill(np.uint16, (3, heads, width)))
        self.out = cupy.asarray(fill(np.uint16, (3, heads * width)))
        places = {"q": q, "k": self.caches[0], "v": self.caches[1]}
        self.rotate = rope_cuda.Rotate(*inputs, *tables, self.batch, eps=1e-6, bias=bias, **places)
        self.attend = cuda.Attend(q, *self.caches, self.batch, self.out, gate=query if gated else None)
        self.both = row_cuda.RotateAttend.of(self.rotate, self.attend)

    def results(self, launch):
        """Cache and output of a launch on a cache as it was at first."""
        before = [some.copy() for some in self.caches]
        launch()
        after = [some.get() for some in (*self.caches, self.out)]
        for some, first in zip(self.caches, before, strict=True):
            some[...] = first
        self.out[...] = cupy.asarray(fill(np.uint16, self.out.shape))
        return after


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_bits_of_both(shape, position):
    row = Row(position, *shape)
    if not capabilities().has_wgmma:
        assert row.both is None
        pytest.skip("no kernel for both without products of four warps")

    def apart():
        row.rotate(1)
        row.attend(1)

    want = row.results(apart)
    assert not np.isnan(want[2][0].view(np.float16)).any()
    for again in range(2):
        for name, got, expected in zip(NAMES, row.results(row.both), want, strict=True):
            assert_same_bits(f"{name}, turn {again}", got, expected)


def test_a_batch_without_rows_changes_nothing():
    row = Row(70, *SHAPES["27B"])
    if row.both is None:
        pytest.skip("no kernel for both without products of four warps")
    before = [some.get() for some in (*row.caches, row.out)]
    row.batch.clear()
    for name, got, expected in zip(NAMES, row.results(row.both), before, strict=True):
        assert_same_bits(name, got, expected)


def test_what_has_no_kernel():
    quantized = [cupy.zeros((2, PAGE, 1, 80), np.int8) for _ in range(2)]
    row = Row(3, 2, 1, 64, 32, False)
    q = cupy.zeros((3, 2, 64), np.uint16)
    assert row_cuda.RotateAttend.of(row.rotate, cuda.Attend(q, *quantized, row.batch, row.out)) is None
