"""RMS norms that multiplies carry: the definition, and the same bits in any company."""

import numpy as np
import pytest
from compare import assert_close, assert_same_bits
from matrices import random_matrix

from dflash.errors import KernelError
from dflash.kernels.linear import reference as linear
from dflash.kernels.norm import reference

cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("dflash.kernels.linear.cuda")
split = pytest.importorskip("dflash.kernels.norm.split")
tiles = pytest.importorskip("dflash.kernels.formats.cuda")

RNG = np.random.default_rng(11)
EPS = 1e-6
WIDTHS = [96, 1000, 2560, 5120]
PARTS = [(0, 1), (6, 1), (1, 8), (2, 16), (0, 23), (8, 32)]


def normal(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


def norm_of(x, weight):
    """A norm of `x` whose arrays were NaN."""
    n, width = x.shape
    half, squares = cupy.full((n, width), np.nan, np.float16), cupy.full((n, split.sums(width)), np.nan, np.float32)
    return split.SplitNorm(x, cupy.asarray(weight), EPS, half=half, squares=squares)


def assert_prepared(norm, stream, weight):
    """What a norm holds is the stream's."""
    n, width = stream.shape
    assert_close("halves", norm.half.get().astype(np.float64), stream.astype(np.float64) * weight / 8, 5e-4)
    filled = np.zeros((n, split.sums(width) * 16))
    filled[:, :width] = stream.astype(np.float64) ** 2
    assert_close("squares", norm.squares.get(), filled.reshape(n, -1, 16).sum(axis=-1), 1e-6)


def prepared(x, weight):
    """A norm of `x` as a multiply leaves it that has added to `x`."""
    width = x.shape[1]
    norm, stream = norm_of(cupy.asarray(x), weight), cupy.asarray(x)
    nothing = cupy.zeros((len(x), 256), np.float16)
    cuda.DecodeLinear(nothing, [tiles.PackedWeight(random_matrix(width, 256))], [stream], add=True, output_norm=norm)(len(x))
    return norm


def normed(norm, x):
    """The rows that a multiply behind it sees: rounded to halves before the factor, which rounds nothing."""
    rounded = norm.half.get().astype(np.float64) * 8
    got = rounded / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + EPS)
    want = np.empty(x.shape)
    reference.rms_norm(x, norm.weight.get(), EPS, out=want)
    assert_close("normed", got, want, 5e-4)
    return got


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("tokens", [1, 7, 16, 40])
def test_a_norm_behind_a_sum(tokens, width):
    packed, gain, start = tiles.PackedWeight(random_matrix(width, 1024)), normal(width), normal(tokens, width)
    x, stream = cupy.asarray(normal(tokens, 1024).astype(np.float16)), cupy.asarray(start)
    norm = norm_of(stream, gain)
    cuda.DecodeLinear(x, [packed], [stream], add=True, scale=0.5, output_norm=norm)(tokens)
    plain = cupy.asarray(start)
    cuda.DecodeLinear(x, [packed], [plain], add=True, scale=0.5)(tokens)
    assert_same_bits("stream", stream.get(), plain.get())
    assert_prepared(norm, stream.get(), gain)


@pytest.mark.parametrize("rows", [(70,), (640, 40, 48)])
@pytest.mark.parametrize("tokens", [1, 6, 23, 64])
def test_products_of_normed_tokens(tokens, rows):
    x, gain = normal(tokens, 1536) * np.float32(7), normal(1536)
    weights = [random_matrix(r, 1536, kind) for r, kind in zip(rows, ("Q4_K", "Q6_K", "F32"), strict=False)]
    norm = prepared(x, gain)
    outs = [cupy.full((tokens, r), np.nan, np.float32) for r in rows]
    cuda.DecodeLinear(norm.half, [tiles.PackedWeight(w) for w in weights], outs, input_norm=norm)(tokens)
    for weight, out in zip(weights, outs, strict=True):
        want = np.zeros((tokens, weight.shape[0]))
        linear.linear(normed(norm, x), [weight], [want])
        assert_close("product", out.get(), want, 5e-4 if weight.type == "F32" else 1e-5)


@pytest.mark.parametrize("kinds", [("Q4_K", "Q4_K"), ("Q4_K", "Q6_K")])
@pytest.mark.parametrize("tokens", [1, 20])
def test_gated_products_of_normed_tokens(tokens, kinds):
    x, gain = normal(tokens, 1024) / np.float32(50), normal(1024)
    gate, up = (random_matrix(300, 1024, kind) for kind in kinds)
    norm = prepared(x, gain)
    out, want = cupy.full((tokens, 300), np.nan, np.float16), np.zeros((tokens, 300))
    cuda.DecodeLinear(norm.half, [tiles.PackedWeight(gate), tiles.PackedWeight(up)], [out], gated=True, input_norm=norm)(
        tokens
    )
    linear.gated_linear(normed(norm, x), gate, up, want)
    assert_close("gated", out.get().astype(np.float64) * 64, want, 5e-4)


@pytest.mark.parametrize(("width", "inner"), [(96, 1024), (2560, 2048), (5120, 17408)])
def test_the_same_bits_in_any_company(width, inner):
    down, up = tiles.PackedWeight(random_matrix(width, inner)), tiles.PackedWeight(random_matrix(256, width, "Q8_0"))
    x, start, gain = normal(40, inner).astype(np.float16), normal(40, width), normal(width)

    def run(rows):
        stream = cupy.asarray(start[rows])
        norm, n = norm_of(stream, gain), len(stream)
        out = cupy.empty((n, 256), np.float32)
        cuda.DecodeLinear(cupy.asarray(x[rows]), [down], [stream], add=True, output_norm=norm)(n)
        cuda.DecodeLinear(norm.half, [up], [out], input_norm=norm)(n)
        return [array.get() for array in (norm.half, norm.squares, out)]

    together = run(slice(0, 40))
    for first, n in PARTS:
        for name, part, whole in zip(("half", "squares", "out"), run(slice(first, first + n)), together, strict=True):
            assert_same_bits(f"{name} of {n} tokens", part, whole[first : first + n])


def test_what_is_too_large_saturates():
    stream = cupy.full((1, 256), 1e7, np.float32)
    norm = norm_of(stream, np.ones(256, np.float32))
    x = cupy.zeros((1, 256), np.float16)
    cuda.DecodeLinear(x, [tiles.PackedWeight(random_matrix(256, 256))], [stream], add=True, output_norm=norm)(1)
    assert (norm.half.get() == 65504).all()


def test_refuses_what_does_not_fit():
    x = cupy.zeros((2, 256), np.float32)
    with pytest.raises(KernelError, match="squares must be"):
        split.SplitNorm(x, x[0], EPS, half=cupy.zeros((2, 256), np.float16), squares=cupy.zeros((2, 17), np.float32))
    packed, norm = tiles.PackedWeight(random_matrix(16, 256)), norm_of(x, np.ones(256, np.float32))
    with pytest.raises(KernelError, match="an output norm needs"):
        cuda.DecodeLinear(norm.half, [packed], [cupy.zeros((2, 16), np.float32)], add=True, output_norm=norm)
