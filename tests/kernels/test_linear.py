"""The packed multiply: the definition, and bits that do not depend on other tokens."""

import numba
import numpy as np
import pytest
from compare import assert_close, assert_same_bits
from matrices import random_matrix

from dflash.errors import KernelError
from dflash.kernels.formats import BLOCKS, FORMATS, Matrix
from dflash.kernels.linear import PackedLinear, gated_linear, linear, reference

RNG = np.random.default_rng(5)

ROUNDING = 5e-5
"""RMS error of products with quantised formats, which round tokens to 16 bits, over RMS of a token times length of a row."""


def tokens_for(kind, x):
    """The tokens that products with a format multiply exactly."""
    return reference.rounded(x) if FORMATS[kind].integers else x


def poisoned(tokens, rows):
    """Return an output of NaN, with a guard row and guard columns around the written part."""
    whole = np.full((tokens + 1, rows + 5), np.nan, np.float32)
    return whole, whole[:tokens, :rows]


@pytest.mark.parametrize(("name", "rows", "width", "tokens"), list(reference.cases()))
def test_products_equal_the_definition(name, rows, width, tokens):
    kind = "Q4_K" if width % 256 == 0 else "Q4_1"
    weights = [random_matrix(r, width, kind) for r in rows]
    x = RNG.standard_normal((tokens, width)).astype(np.float32)
    wholes, outs = zip(*[poisoned(tokens, r) for r in rows], strict=True)
    linear(x, weights, outs)
    wants = [np.zeros((tokens, r)) for r in rows]
    reference.linear(tokens_for(kind, x), weights, wants)
    for whole, out, want in zip(wholes, outs, wants, strict=True):
        assert_close(name, out, want, 1e-6)
        assert np.isnan(whole[tokens:]).all()
        assert np.isnan(whole[:, out.shape[1] :]).all()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 6])
def test_products_of_every_format_equal_the_definition(kind, tokens):
    weight = random_matrix(21, 512, kind)
    x = RNG.standard_normal((tokens, 512)).astype(np.float32)
    out, want = np.full((tokens, 21), np.nan, np.float32), np.zeros((tokens, 21))
    linear(x, [weight], [out])
    reference.linear(tokens_for(kind, x), [weight], [want])
    assert_close(kind, out, want, 1e-6)
    reference.linear(x, [weight], [want])
    error = np.sqrt(np.mean((out - want) ** 2))
    assert error <= ROUNDING * np.sqrt(np.mean(x**2) * np.mean(np.sum(weight.unpacked() ** 2, axis=1)))


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if FORMATS[kind].integers])
@pytest.mark.parametrize("tokens", [1, 12, 40])
def test_the_largest_whole_numbers_fit_a_sum(kind, tokens):
    """Every product of a block has the largest size and the same sign."""
    least = {"Q3_K": 0, "IQ4_XS": 0, "Q6_K": 0, "Q4_0": 0, "Q5_0": 0, "IQ4_NL": 0, "Q8_0": 128, "MXFP4": 0x77}
    data = np.full((5, 512 // BLOCKS[kind].elements, BLOCKS[kind].n_bytes), least.get(kind, 255), np.uint8)
    if kind == "Q6_K":
        data[..., 192:208] = 128
    scales = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "MXFP4": ()}
    for at in scales.get(kind, (0,) if kind in least else (0, 2)):
        data[..., at : at + 2] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
    weight = Matrix(data.reshape(5, -1), kind)
    out, want = np.full((tokens, 5), np.nan, np.float32), np.zeros((tokens, 5))
    linear(np.full((tokens, 512), 3, np.float32), [weight], [out])
    reference.linear(np.full((tokens, 512), 3.0), [weight], [want])
    assert_close(kind, out, want, 1e-6)


@pytest.mark.parametrize("kind", ["Q4_K", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("tokens", [1, 12, 20])
def test_values_of_a_block_that_are_no_finite_numbers_or_tiny(kind, tokens):
    weight = random_matrix(20, 768, kind)
    x = RNG.standard_normal((tokens, 768)).astype(np.float32)
    plain, out = np.empty((tokens, 20), np.float32), np.empty((tokens, 20), np.float32)
    for value in (np.nan, np.inf, -np.inf):
        x[-1, 300] = value
        linear(x, [weight], [out])
        assert np.isnan(out[-1]).all()
        assert np.isfinite(out[:-1]).all()
    for value in (0.0, 1e-42, 1e-37):
        x[-1, 256:512] = value
        linear(x, [weight], [out])
        x[-1, 256:512] = 0
        linear(x, [weight], [plain])
        np.testing.assert_allclose(out, plain, rtol=1e-6)


@pytest.mark.parametrize("kind", ["IQ3_S", "IQ2_XXS", "TQ2_0"])
def test_formats_that_kernels_do_not_read(kind):
    data = RNG.integers(0, 256, (9, 2 * BLOCKS[kind].n_bytes), np.uint8)
    at = {"TQ2_0": 64}.get(kind, 0)
    for block in range(2):
        start = block * BLOCKS[kind].n_bytes + at
        data[:, start : start + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    weight = Matrix(data, kind)
    x = RNG.standard_normal((3, 512)).astype(np.float32)
    out, want = np.full((3, 9), np.nan, np.float32), np.zeros((3, 9))
    linear(x, [weight], [out])
    reference.linear(x, [weight], [want])
    assert_close(kind, out, want, 1e-6)
    gated = np.full((3, 9), np.nan, np.float32)
    gated_linear(x, weight, weight, gated)
    reference.gated_linear(x, weight, weight, want)
    assert_close(kind, gated, want, 2e-6)
    PackedLinear(x, [weight], [out], add=True)(3)


@pytest.mark.parametrize("gelu", [False, True], ids=["silu", "gelu"])
@pytest.mark.parametrize("tokens", [1, 7, 40])
def test_gated_products_equal_the_definition(tokens, gelu):
    gate, up = random_matrix(70, 512), random_matrix(70, 512, "Q6_K")
    x = RNG.standard_normal((tokens, 512)).astype(np.float32)
    whole, out = poisoned(tokens, 70)
    gated_linear(x, gate, up, out, gelu=gelu)
    want = np.zeros((tokens, 70))
    reference.gated_linear(reference.rounded(x), gate, up, want, gelu=gelu)
    assert_close("gated", out, want, 2e-6)
    assert np.isnan(whole[:, 70:]).all()


def test_add_keeps_the_residual():
    weight = random_matrix(50, 256)
    x = RNG.standard_normal((5, 256)).astype(np.float32)
    start = RNG.standard_normal((5, 50)).astype(np.float32)
    plain, added = np.empty((5, 50), np.float32), start.copy()
    linear(x, [weight], [plain])
    linear(x, [weight], [added], add=True)
    assert_same_bits("residual", added, start + plain)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_token_has_the_same_bits_in_every_batch(kind):
    weights = [random_matrix(37, 768, kind), random_matrix(64, 768, "Q6_K")]
    x = RNG.standard_normal((33, 768)).astype(np.float32)
    together = [np.empty((33, 37), np.float32), np.empty((33, 64), np.float32)]
    linear(x, weights, together)
    for n in (1, 2, 3, 4, 5, 6, 7, 8, 16, 17):
        some = [np.empty((n, 37), np.float32), np.empty((n, 64), np.float32)]
        linear(x[5 : 5 + n], weights, some)
        for a, b in zip(some, together, strict=True):
            assert_same_bits(f"{n} tokens", a, b[5 : 5 + n])


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if BLOCKS[kind].elements == 32])
@pytest.mark.parametrize("width", [32, 64, 224, 288, 576, 800])
def test_rows_of_any_number_of_blocks_equal_the_definition(kind, width):
    """Rows end with a record of some blocks, beside others that read the same tokens."""
    weights = [random_matrix(21, width, kind), random_matrix(9, width, "F32"), random_matrix(19, width, "Q8_0")]
    x = RNG.standard_normal((40, width)).astype(np.float32)
    wants = [np.zeros((40, len(weight.data))) for weight in weights]
    for weight, want in zip(weights, wants, strict=True):
        reference.linear(tokens_for(weight.type, x), [weight], [want])
    together = [np.full(want.shape, np.nan, np.float32) for want in wants]
    linear(x, weights, together)
    for n in (1, 3, 16, 17):
        outs = [np.full((n, want.shape[1]), np.nan, np.float32) for want in wants]
        linear(x[:n], weights, outs)
        for out, whole, want in zip(outs, together, wants, strict=True):
            assert_close(f"{n} tokens", out, want[:n], 1e-6)
            assert_same_bits(f"{n} tokens", out, whole[:n])


def test_launches_with_both_roundings_of_the_same_tokens():
    kinds, x = ("Q8_0", "Q4_K", "Q4_0", "Q6_K"), RNG.standard_normal((20, 512)).astype(np.float32)
    weights = [random_matrix(33, 512, kind) for kind in kinds]
    for n in (1, 20):
        together = [np.full((n, 33), np.nan, np.float32) for _ in kinds]
        linear(x[:n], weights, together)
        for weight, out in zip(weights, together, strict=True):
            alone = np.full((n, 33), np.nan, np.float32)
            linear(x[:n], [weight], [alone])
            assert_same_bits(weight.type, out, alone)


@pytest.mark.parametrize(("kind", "width"), [("Q4_K", 1280), ("Q6_K", 512), ("Q4_1", 1312), ("F32", 1040)])
def test_many_tokens_have_the_bits_of_one(kind, width):
    weights, x = [random_matrix(35, width, kind)] * 2, RNG.standard_normal((301, width)).astype(np.float32)
    together, alone = np.full((301, 35), np.nan, np.float32), np.empty((1, 35), np.float32)
    gated, gated_alone = np.full((301, 35), np.nan, np.float32), np.empty((1, 35), np.float32)
    linear(x, weights[:1], [together])
    gated_linear(x, *weights, gated)
    for t in (0, 127, 128, 255, 256, 300):
        linear(x[t : t + 1], weights[:1], [alone])
        assert_same_bits(f"token {t}", together[t], alone[0])
        gated_linear(x[t : t + 1], *weights, gated_alone)
        assert_same_bits(f"gated token {t}", gated[t], gated_alone[0])
    for n in (9, 12, 13, 16):
        some = np.full((n, 35), np.nan, np.float32)
        linear(x[:n], weights[:1], [some])
        assert_same_bits(f"{n} tokens", some, together[:n])
    assert np.isfinite(together).all() and np.isfinite(gated).all()


def test_threads_change_nothing():
    weight = random_matrix(300, 512)
    x = RNG.standard_normal((9, 512)).astype(np.float32)
    outs = []
    before = numba.get_num_threads()
    for n in (1, min(2, numba.config.NUMBA_NUM_THREADS)):
        numba.set_num_threads(n)
        out = np.empty((9, 300), np.float32)
        linear(x, [weight], [out])
        outs.append(out)
    numba.set_num_threads(before)
    assert_same_bits("threads", outs[0], outs[1])


def test_launch_runs_for_any_number_of_tokens():
    weight = random_matrix(48, 512)
    x = RNG.standard_normal((8, 512)).astype(np.float32)
    out, want = np.full((8, 48), np.nan, np.float32), np.empty((8, 48), np.float32)
    linear(x, [weight], [want])
    launch = PackedLinear(x, [weight], [out])
    for n in (3, 8):
        launch(n)
        assert_same_bits("launch", out[:n], want[:n])
        assert n == 8 or np.isnan(out[n:]).all()


def test_refuses_what_does_not_fit():
    weight = random_matrix(16, 256)
    x = np.zeros((2, 512), np.float32)
    with pytest.raises(KernelError, match="rows of 256 weights"):
        linear(x, [weight], [np.zeros((2, 16), np.float32)])
    with pytest.raises(KernelError, match="out must be"):
        linear(x[:, :256], [weight], [np.zeros((2, 17), np.float32)])
    with pytest.raises(KernelError, match="multiple of 16"):
        Matrix(np.zeros((3, 40), np.uint8), "F32")
