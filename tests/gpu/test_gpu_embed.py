"""Embeddings on a GPU: exactly the file's values, for every format."""

import numpy as np
import pytest
from compare import assert_same_bits
from matrices import random_matrix

from dflash.errors import KernelError
from dflash.kernels.formats import BLOCKS, FORMATS

cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("dflash.kernels.embed.cuda")
tiles = pytest.importorskip("dflash.kernels.formats.cuda")

RNG = np.random.default_rng(4)


def embed(tokens, table, width, **settings):
    out = cupy.full((len(tokens) + 1, width), np.nan, np.float32)
    cuda.Embed(cupy.asarray(tokens, np.int32), table, out[:-1], **settings)(len(tokens))
    out = out.get()
    assert np.isnan(out[-1]).all()
    return out[:-1]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("n", [1, 7, 200])
def test_every_format(kind, n):
    width = 5120 if n == 7 else 512 if BLOCKS[kind].elements == 256 else 3 * max(32, BLOCKS[kind].elements)
    table = random_matrix(77, width, kind)
    want = table.unpacked()
    if kind == "BF16":
        want = want.astype(np.float16).astype(np.float32)
    tokens = RNG.integers(0, 77, n)
    tokens[0] = 76
    got = embed(tokens, tiles.PackedWeight(table), width)
    assert (got == want[tokens]).all()


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("width", [16, 48, 112])
def test_narrow_rows(kind, width):
    table = random_matrix(5, width, kind)
    want = table.unpacked()
    if kind == "BF16":
        want = want.astype(np.float16).astype(np.float32)
    assert (embed([4, 0, 0, 2], tiles.PackedWeight(table), width) == want[[4, 0, 0, 2]]).all()


def test_tokens_that_are_not_there_give_zeros():
    table = random_matrix(20, 256)
    got = embed([3, -1, 20, 2**31 - 1], tiles.PackedWeight(table), 256)
    assert_same_bits("known", got[0], table.unpacked()[3])
    assert not got[1:].any()


def test_a_factor():
    table = random_matrix(20, 256)
    got = embed([3, 19], tiles.PackedWeight(table), 256, scale=1.7)
    assert_same_bits("scaled", got, table.unpacked()[[3, 19]] * np.float32(1.7))


def test_refused():
    table = tiles.PackedWeight(random_matrix(20, 256))
    with pytest.raises(KernelError, match="out must be"):
        cuda.Embed(cupy.zeros(3, np.int32), table, cupy.zeros((4, 256), np.float32))
    with pytest.raises(KernelError, match="tokens is contiguous int32"):
        cuda.Embed(cupy.zeros(3, np.int64), table, cupy.zeros((3, 256), np.float32))
