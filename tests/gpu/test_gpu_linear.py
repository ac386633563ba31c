"""The packed multiply on a GPU: against the definition, and the same bits in any company."""

import numpy as np
import pytest
from compare import assert_close, assert_same_bits
from matrices import random_matrix

from dflash.errors import KernelError
from dflash.kernels.formats import BLOCKS, FORMATS
from dflash.kernels.linear import reference

cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("dflash.kernels.linear.cuda")
tiles = pytest.importorskip("dflash.kernels.formats.cuda")

RNG = np.random.default_rng(5)
TOLERANCE = 5e-4


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def poisoned(tokens, rows):
    """NaN, with a guard row and guard columns around the part that is written."""
    whole = cupy.full((tokens + 1, rows + 5), np.nan, np.float32)
    return whole, whole[:tokens, :rows]


def product(x, weight):
    out = cupy.full((len(x), weight.shape[0]), np.nan, np.float32)
    cuda.linear(cupy.asarray(x), [weight], [out])
    return out.get()


@pytest.mark.parametrize("kind", FORMATS)
def test_weights_are_exact(kind):
    weight = random_matrix(37, 768, kind)
    packed, got = tiles.Tiles(weight), []
    for start in range(0, 768, 64):
        one_hot = np.zeros((64, 768), np.float32)
        one_hot[np.arange(64), start + np.arange(64)] = 1
        got.append(product(one_hot, packed))
    want = weight.unpacked().T
    got = np.concatenate(got)
    if kind in ("F32", "BF16"):
        want = want.astype(np.float16)
    assert_close(kind, got, want, 1e-7 if kind in ("F16", "F32", "BF16") else 1e-6)


CASES = [(kind, *case) for kind in ("Q8_0", "Q4_K") for case in reference.cases() if case[3] <= 64]


@pytest.mark.parametrize(
    ("kind", "name", "rows", "width", "tokens"), [c for c in CASES if c[3] % BLOCKS[c[0]].elements == 0]
)
def test_linear(kind, name, rows, width, tokens):
    weights = [random_matrix(r, width, kind) for r in rows]
    x = normal(tokens, width)
    wholes, outs = zip(*[poisoned(tokens, r) for r in rows], strict=True)
    cuda.linear(cupy.asarray(x), [tiles.Tiles(w) for w in weights], outs)
    wants = [np.zeros((tokens, r)) for r in rows]
    reference.linear(x, weights, wants)
    for whole, out, want in zip(wholes, outs, wants, strict=True):
        assert_close(name, out.get(), want, TOLERANCE)
        assert np.isnan(whole[tokens:].get()).all()
        assert np.isnan(whole[:, out.shape[1] :].get()).all()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("tokens", [1, 6, 23, 64])
def test_every_format(kind, tokens):
    weight, x = random_matrix(149, 1536, kind), normal(tokens, 1536)
    want = np.zeros((tokens, 149))
    reference.linear(x, [weight], [want])
    assert_close(kind, product(x, tiles.Tiles(weight)), want, TOLERANCE)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_token_has_the_same_bits_in_every_batch(kind):
    packed, x = tiles.Tiles(random_matrix(333, 1536, kind)), normal(64, 1536)
    together = product(x, packed)
    assert_same_bits("two runs", product(x, packed), together)
    for start, n in ((0, 1), (5, 1), (63, 1), (3, 7), (8, 8), (5, 16), (1, 23), (32, 32)):
        assert_same_bits(f"{n} tokens", product(x[start : start + n], packed), together[start : start + n])


@pytest.mark.parametrize("tokens", [1, 7, 16, 40])
@pytest.mark.parametrize("rows", [70, 300])
def test_gated_linear(tokens, rows):
    gate, up, x = random_matrix(rows, 1024), random_matrix(rows, 1024), normal(tokens, 1024)
    whole, out = poisoned(tokens, rows)
    want = np.zeros((tokens, rows))
    cuda.gated_linear(cupy.asarray(x), tiles.Tiles(gate), tiles.Tiles(up), out)
    reference.gated_linear(x, gate, up, want)
    assert_close("gated", out.get(), want, 2 * TOLERANCE)
    assert np.isnan(whole[:, rows:].get()).all()
    alone = cupy.empty((1, rows), np.float32)
    cuda.gated_linear(cupy.asarray(x[-1:]), tiles.Tiles(gate), tiles.Tiles(up), alone)
    assert_same_bits("alone", alone.get(), out[-1:].get())


def test_add_keeps_the_residual():
    packed, x, start = tiles.Tiles(random_matrix(50, 2048)), normal(5, 2048), normal(5, 50)
    added = cupy.asarray(start)
    cuda.linear(cupy.asarray(x), [packed], [added], add=True)
    assert_same_bits("residual", added.get(), start + product(x, packed))


def test_weights_of_several_types_and_a_launch_in_a_graph():
    kinds, rows = ["Q4_K", "Q6_K", "Q4_K", "Q8_0"], [512, 40, 40, 7]
    weights = [random_matrix(r, 2048, kind) for r, kind in zip(rows, kinds, strict=True)]
    x = cupy.asarray(normal(16, 2048))
    outs = [cupy.full((16, r), np.nan, np.float32) for r in rows]
    launch = cuda.Launch(x, [tiles.Tiles(w) for w in weights], outs)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        launch(3)
        stream.synchronize()
        stream.begin_capture()
        launch(3)
        graph = stream.end_capture()
        for _ in range(3):
            x[:] = cupy.asarray(normal(16, 2048))
            graph.launch()
        stream.synchronize()
    wants = [np.zeros((16, r)) for r in rows]
    reference.linear(x.get(), weights, wants)
    for out, want in zip(outs, wants, strict=True):
        assert_close("graph", out[:3].get(), want[:3], TOLERANCE)
        assert np.isnan(out[3:].get()).all()


def test_large_and_tiny_activations():
    weight = random_matrix(64, 512, "Q8_0")
    x = normal(4, 512) * np.array([[1e6], [1e-9], [0], [1]], np.float32)
    want = np.zeros((4, 64))
    reference.linear(x, [weight], [want])
    got = product(x, tiles.Tiles(weight))
    for i in range(4):
        assert_close(f"token {i}", got[i], want[i], TOLERANCE)


def test_refuses_what_does_not_fit():
    packed = tiles.Tiles(random_matrix(16, 256))
    with pytest.raises(KernelError, match="rows of 256 weights"):
        cuda.linear(cupy.zeros((2, 512), np.float32), [packed], [cupy.zeros((2, 16), np.float32)])
    with pytest.raises(KernelError, match="out must be"):
        cuda.linear(cupy.zeros((2, 256), np.float32), [packed], [cupy.zeros((2, 17), np.float32)])
    with pytest.raises(KernelError, match="contiguous float32"):
        cuda.linear(cupy.zeros((2, 512), np.float32)[:, ::2], [packed], [cupy.zeros((2, 16), np.float32)])
