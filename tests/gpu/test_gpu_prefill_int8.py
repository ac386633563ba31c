"""The multiply of a prefill with int8 operands: the sums of NumPy, near the exact product, the same bits in any company."""

import numpy as np
import pytest
from compare import assert_close, assert_same_bits
from matrices import random_matrix

from dflash.errors import KernelError
from dflash.kernels.formats import BLOCKS, FORMATS
from dflash.kernels.gpu.capabilities import capabilities

cupy = pytest.importorskip("cupy")
prefill = pytest.importorskip("dflash.kernels.linear.cuda_prefill")
tiles = pytest.importorskip("dflash.kernels.formats.cuda")

RNG = np.random.default_rng(6)
QUANTIZED = [kind for kind in FORMATS if BLOCKS[kind].elements > 1]
SCRATCH = 1 << 26
ROUNDING = 0.012
"""RMS error of a product of normal values. 256 of these reach 2.9 times their RMS, so steps of a 127th of that have an error
of 0.7 %; a row of 1,536 weights, whose blocks are random bits, has up to 1 %."""


@pytest.fixture(autouse=True)
def hopper():
    if not capabilities().has_wgmma:
        pytest.skip("neither a Hopper GPU nor its target")


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float16)


def product(x, *weights, n_bytes=SCRATCH, out=None, kept=0, **options):
    """The outputs of a launch, whose scratch and outputs are NaN or other nonsense before."""
    scratch = prefill.UnpackScratch(n_bytes, kept=kept)
    scratch.halves.fill(np.nan)
    outs = [out] if out is not None else [cupy.full((len(x), w.shape[0]), np.nan, np.float32) for w in weights]
    packed = [tiles.PackedWeight(w) for w in weights]
    launch = prefill.PrefillLinear(cupy.asarray(x), packed, outs, scratch=scratch, int8=True, **options)
    for _ in range(2 if not options.get("add") else 1):  # the first call alone finds the largest weights
        launch(len(x))
    return [each.get() for each in outs]


def rotated(values, dtype):
    """Rows in blocks of 256, of which each group of 64 has its signs and is rotated, float32 (N, blocks, 256)."""
    padded = np.pad(values.astype(np.float16).astype(dtype), ((0, 0), (0, -values.shape[1] % 256)))
    signs = [1 - 2 * (0x9E3779B97F4A7C15 >> i & 1) for i in range(64)]
    v = padded.reshape(len(values), -1, 8, 4, 8) * np.reshape(signs, (8, 1, 8)).astype(dtype)
    for axis in (4, 2):  # the columns of a run of 8, then the runs
        for apart in (1, 2, 4):
            v = np.moveaxis(v, axis, -1)
            pairs = v.reshape(*v.shape[:-1], -1, 2, apart)
            low, high = pairs[..., 0, :], pairs[..., 1, :]
            v = np.moveaxis(np.stack([low + high, low - high], axis=-2).reshape(v.shape), -1, axis)
    return v.reshape(len(values), -1, 256).astype(np.float32)


def rounded(values, factors):
    return np.rint(values.astype(np.float64) * factors).astype(np.int64)


def reciprocal(of, largest):
    return np.divide(np.float32(of), largest, out=np.zeros_like(largest), where=largest > 0)


def reference(x, weight):
    """The same rounding and the same order of sums."""
    values, rows = rotated(x, np.float32), rotated(weight.unpacked(), np.float16)
    largest = abs(values).max(axis=2, keepdims=True)
    tokens, scales = rounded(values, reciprocal(127, largest)), largest * np.float32(1 / 127)
    wanted = np.minimum(reciprocal(127, abs(rows).max(axis=(1, 2), keepdims=True)), np.float32(65504))
    factors = wanted.astype(np.float16)
    factors = np.where(factors > wanted, np.nextafter(factors, np.float16(0)), factors).astype(np.float32)
    rows, units = rounded(rows, factors), reciprocal(1, factors)
    total = np.zeros((len(x), len(rows)), np.float32)
    for block in range(tokens.shape[1]):
        sums = tokens[:, block] @ rows[:, block].T
        total = (sums * scales[:, block].astype(np.float64) + total).astype(np.float32)
    return total * (units[:, 0, 0] / np.float32(64))


@pytest.mark.parametrize("kind", QUANTIZED)
def test_every_format_has_the_sums_of_the_reference(kind):
    weight, x = random_matrix(149, 1536, kind), normal(130, 1536)
    (got,) = product(x, weight)
    np.testing.assert_allclose(got, reference(x, weight), rtol=3e-7, atol=1e-6 * abs(got).max())
    assert_close(kind, got, x.astype(np.float64) @ weight.unpacked().astype(np.float64).T, ROUNDING)


@pytest.mark.parametrize("tokens", [1, 130])
@pytest.mark.parametrize(("rows", "width", "kind"), [(1, 256, "Q4_K"), (400, 96, "Q8_0"), (300, 5120, "Q6_K")])
def test_shapes(rows, width, kind, tokens):
    weight, x = random_matrix(rows, width, kind), normal(tokens, width)
    x[:, 5] *= 100  # an outlier
    x[tokens // 2] = 0
    (got,) = product(x, weight)
    np.testing.assert_allclose(got, reference(x, weight), rtol=3e-7, atol=1e-6 * abs(got).max())


def test_weights_of_floats_are_not_rounded():
    kinds, rows = ["Q4_K", "F32", "Q6_K", "F16"], [512, 48, 40, 7]
    weights, x = [random_matrix(r, 2048, kind) for r, kind in zip(rows, kinds, strict=True)], normal(300, 2048)
    together = product(x, *weights)
    for weight, got in zip(weights, together, strict=True):
        if weight.type in QUANTIZED:
            np.testing.assert_allclose(got, reference(x, weight), rtol=3e-7, atol=1e-6 * abs(got).max())
        else:
            assert_close(weight.type, got, x.astype(np.float64) @ weight.unpacked().astype(np.float64).T, 5e-4)
    least = prefill.quantized_bytes(300, 2048) + 2 * 2048 * 256
    for got, want in zip(product(x, *weights, n_bytes=least), together, strict=True):
        assert_same_bits("in parts", got, want)


@pytest.mark.parametrize("kinds", [("Q4_K", "Q6_K"), ("Q4_K", "F16")])
def test_gated(kinds):
    gate, up = (random_matrix(450, 1024, kind) for kind in kinds)
    x, out = normal(200, 1024), cupy.zeros((200, 450), np.float16)
    (got,) = product(x, gate, up, out=out, gated=True)
    if "F16" in kinds:
        a, b = (x.astype(np.float64) @ w.unpacked().astype(np.float64).T for w in (gate, up))
    else:
        a, b = reference(x, gate).astype(np.float64), reference(x, up).astype(np.float64)
    assert_close("gated", got, a / (1 + np.exp(-a)) * b * prefill.INNER_SCALE, 1e-3)


def test_adds_to_the_residual():
    weight, x = random_matrix(333, 1024), normal(77, 1024)
    start = RNG.standard_normal((77, 333)).astype(np.float32)
    (got,) = product(x, weight, out=cupy.asarray(start), add=True, scale=64.0)
    np.testing.assert_allclose(got, start + 64 * reference(x, weight), rtol=1e-5, atol=1e-6 * abs(got).max())


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_a_token_has_the_same_bits_in_every_batch(kind):
    weight, x = random_matrix(530, 1536, kind), normal(1100, 1536)
    (together,) = product(x, weight)
    for start, n in ((0, 1), (1099, 1), (64, 200), (513, 517)):
        for kept in (0, SCRATCH):
            (some,) = product(x[start : start + n], weight, kept=kept)
            assert_same_bits(f"{n} tokens", some, together[start : start + n])


def test_refuses_what_does_not_fit(monkeypatch):
    packed, scratch = tiles.PackedWeight(random_matrix(16, 256)), prefill.UnpackScratch(1 << 10)
    x, out = cupy.zeros((200, 256), np.float16), cupy.zeros((200, 16), np.float32)
    with pytest.raises(KernelError, match="does not hold 200 tokens of 256 as int8"):
        prefill.PrefillLinear(x, [packed], [out], scratch=scratch, int8=True)
    with pytest.raises(KernelError, match=r"scale of an addition is 3\.0, must be a power of two"):
        prefill.PrefillLinear(x, [packed], [out], scratch=prefill.UnpackScratch(SCRATCH), add=True, scale=3.0)
    with pytest.raises(KernelError, match="at most 32 weights in a launch, got 33"):
        prefill.PrefillLinear(x, [packed] * 33, [out] * 33, scratch=prefill.UnpackScratch(SCRATCH), int8=True)
    monkeypatch.setattr(prefill, "capabilities", lambda: capabilities()._replace(has_wgmma=False))
    with pytest.raises(KernelError, match="int8 needs a Hopper GPU"):
        prefill.PrefillLinear(x, [packed], [out], scratch=scratch, int8=True)
