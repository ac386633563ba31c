"""Embeddings of tokens for each layer on a GPU, their GELU gate, and tokens that are never chosen: the definitions."""

import numpy as np
import pytest
from compare import assert_close, assert_same_bits

from dflash.errors import KernelError
from dflash.kernels.gelu import reference as gelu_reference
from dflash.kernels.per_layer import reference

cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("dflash.kernels.per_layer.cuda")
gelu = pytest.importorskip("dflash.kernels.gelu.cuda")
soft_cap = pytest.importorskip("dflash.kernels.soft_cap.cuda")

RNG = np.random.default_rng(4)
EPS = 1e-6
INNER_SCALE = 2.0**-6


def normal(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("case", [*reference.cases()], ids=lambda case: case[0])
def test_layer_embeddings(case):
    name, n, layers, size = case
    projected, token_part, weight = normal(n + 1, layers * size), normal(n + 1, layers * size), normal(size)
    got, want = cupy.asarray(projected), np.empty(projected.shape)
    cuda.LayerEmbeddings(got, cupy.asarray(token_part), cupy.asarray(weight), EPS)(n)
    reference.layer_embeddings(projected, token_part, weight, EPS, out=want)
    assert_close(name, got.get()[:n], want[:n], 3e-7)
    assert_same_bits("a row more", got.get()[n:], projected[n:])


@pytest.mark.parametrize("width", [16, 2560])
def test_halve(width):
    x, out = normal(3, width) * 1e6, cupy.full((3, width), np.nan, np.float16)
    cuda.Halve(cupy.asarray(x), out, scale=0.125)(2)
    assert_same_bits("halves", out.get()[:2], np.clip(x[:2] * np.float32(0.125), -65504, 65504).astype(np.float16))
    assert np.isnan(out.get()[2:]).all()


@pytest.mark.parametrize("case", [*gelu_reference.cases()], ids=lambda case: case[0])
def test_gelu_gate(case):
    """The gate of rows that are too large for float16."""
    name, n, gates = case
    x, gate, values = normal(n + 1, 320) * 1e5, normal(n + 1, gates) / 1e4, normal(n + 1, 3 * gates)
    out = cupy.full((n + 1, gates), np.nan, np.float16)
    arrays = (cupy.asarray(a) for a in (gate, values))
    gelu.GeluGate(cupy.asarray(x), EPS, *arrays, gates, out)(n)
    want = np.empty(gate.shape)
    rms = np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=1, keepdims=True) + EPS)
    gelu_reference.gelu_gate(gate * rms, values[:, gates : 2 * gates], out=want)
    assert_close(name, out.get()[:n] / INNER_SCALE, want[:n], 5e-4)
    assert np.isnan(out.get()[n:]).all()


def test_suppress():
    logits, ids = normal(3, 1000), np.array([0, 7, 999, *range(100, 300)], np.int32)
    got, want = cupy.asarray(logits), logits.copy()
    soft_cap.Suppress(got, cupy.asarray(ids))(2)
    want[:2, ids] = -np.inf
    assert_same_bits("logits", got.get(), want)


def test_refuses_what_does_not_fit():
    x, out = cupy.zeros((2, 32), np.float32), cupy.zeros((2, 16), np.float16)
    with pytest.raises(KernelError, match="first is 20, must be from 0 to 16"):
        gelu.GeluGate(x, EPS, cupy.zeros((2, 16), np.float32), x, 20, out)
    with pytest.raises(KernelError, match="halve: out: wanted"):
        cuda.Halve(x, out, scale=1.0)
