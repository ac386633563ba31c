"""Embeddings, the first norm and rotary angles in one launch: the bits of the three ops."""

import numpy as np
import pytest
from compare import assert_same_bits
from matrices import random_matrix

cupy = pytest.importorskip("cupy")
embed_cuda = pytest.importorskip("dflash.kernels.embed.cuda")
norm_cuda = pytest.importorskip("dflash.kernels.norm.cuda")
rope_cuda = pytest.importorskip("dflash.kernels.rope.cuda")
start_cuda = pytest.importorskip("dflash.kernels.embed.cuda_pass_start")
tiles = pytest.importorskip("dflash.kernels.formats.cuda")

NAMES = "embeddings", "norm", "cosines", "sines"
ROWS = 9


class Start:
    """The three ops over arrays of their own, and the one op."""

    def __init__(self, kind, width, pairs, scale):
        rng = np.random.default_rng(width)
        table = tiles.PackedWeight(random_matrix(77, width, kind))
        tokens = cupy.asarray([76, 0, 5, -1, 77, 33, 33, 12, 1], np.int32)
        position = cupy.asarray([0, 1, 2, 77, 262143, 5, 6, 7, 8], np.int32)
        inv_freq = cupy.asarray(np.float32(1e6 ** -rng.uniform(0, 1, pairs)))
        gain = cupy.asarray(rng.standard_normal(width, dtype=np.float32))
        self.arrays = cupy.zeros((ROWS, width), np.float32), cupy.zeros((ROWS, width), np.float16)
        self.arrays += tuple(cupy.zeros((ROWS, pairs), np.float32) for _ in range(2))
        stream, normed, *tables = self.arrays
        self.embed = embed_cuda.Embed(tokens, table, stream, scale=scale)
        self.norm = norm_cuda.RmsNorm(stream, gain, 1e-6, half=normed)
        self.angles = rope_cuda.Angles(position, inv_freq, *tables, gain=1.25)
        self.start = start_cuda.PassStart.of(self.embed, self.norm, self.angles)

    def results(self, *launches, rows):
        for array in self.arrays:
            array.fill(np.nan)
        for launch in launches:
            launch(rows)
        return [array.get() for array in self.arrays]


@pytest.mark.parametrize("rows", [1, 3, 9])
@pytest.mark.parametrize(
    ("kind", "width", "pairs", "scale"),
    [
        ("Q4_K", 5120, 32, 1.0),
        ("Q6_K", 1024, 16, 1.0),
        ("Q8_0", 96, 48, 1.5),
        ("F16", 2560, 64, 1.0),
        ("IQ4_NL", 2080, 7, 1.0),
    ],
    ids=str,
)
def test_the_bits_of_three_launches(kind, width, pairs, scale, rows):
    made = Start(kind, width, pairs, scale)
    want = made.results(made.embed, made.norm, made.angles, rows=rows)
    assert np.isfinite(want[0][:rows]).all()
    assert np.isnan(want[0][rows:]).all()
    for name, got, expected in zip(NAMES, made.results(made.start, rows=rows), want, strict=True):
        assert_same_bits(name, got, expected)


def test_ops_that_stay_apart():
    made = Start("Q8_0", 96, 8, 1.0)
    other = norm_cuda.RmsNorm(cupy.zeros((ROWS, 96), np.float32), cupy.zeros(96, np.float32), 1e-6, half=made.arrays[1])
    full = norm_cuda.RmsNorm(made.arrays[0], cupy.zeros(96, np.float32), 1e-6, half=made.arrays[1], full=made.arrays[0])
    for norm in (other, full):
        assert start_cuda.PassStart.of(made.embed, norm, made.angles) is None
    large = Start("Q8_0", 10272, 8, 1.0)
    assert large.start is None
