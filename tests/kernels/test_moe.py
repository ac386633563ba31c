"""Experts: recorded results, the definition, and bits that do not depend on other tokens."""

from pathlib import Path

import numpy as np
import pytest
from compare import assert_close, assert_same_bits
from experts import random_experts

from dflash.kernels.formats import BLOCKS, Matrix
from dflash.kernels.moe import Experts, Moe, SigmoidRouting, cpu, reference

DATA = Path(__file__).parent.parent / "data" / "kernels" / "moe.npz"
RNG = np.random.default_rng(3)
ROUNDING = 2e-4
"""RMS error over RMS: three products with K-quants, which round tokens to 16 bits."""


def f32(array):
    """Pad rows with zeros to a multiple of the 16 lanes."""
    padding = [(0, 0)] * (array.ndim - 1) + [(0, -array.shape[-1] % 16)]
    return Matrix(np.pad(array, padding).astype(np.float32).view(np.uint8), "F32")


def with_rows(matrix, rows):
    padding = [(0, 0)] * (matrix.data.ndim - 2) + [(0, rows - matrix.data.shape[-2]), (0, 0)]
    return Matrix(np.pad(matrix.data, padding), matrix.type)


def test_routing_is_as_recorded():
    g = np.load(DATA)
    names = {name.removesuffix(".weight"): g[name] for name in g.files}
    weights = Experts(
        f32(names["ffn_gate_inp"]),
        f32(names["ffn_gate_exps"]),
        f32(names["ffn_up_exps"]),
        f32(names["ffn_down_exps"]),
        f32(names["ffn_gate_inp_shexp"].reshape(1, -1)),
        f32(names["ffn_gate_shexp"]),
        f32(names["ffn_up_shexp"]),
        f32(names["ffn_down_shexp"]),
        g["experts"].shape[1],
    )
    widths = dict.fromkeys(("gate", "up"), weights.down.shape[-1])
    widths |= dict.fromkeys(("shared_gate", "shared_up"), weights.shared_down.shape[-1])
    weights = weights._replace(**{part: with_rows(getattr(weights, part), n) for part, n in widths.items()})
    x = g["x"]
    out = np.zeros_like(x)
    Moe(x, weights, out)(len(x))
    assert np.abs(out - g["y"]).max() < 1e-5
    chosen, shares = np.empty_like(g["experts"]), np.empty_like(g["weights"])
    cpu.route(g["router_logits"], chosen.shape[1], chosen, shares)
    assert (chosen == g["experts"]).all()
    assert_close("shares", shares, g["weights"], 1e-6)


@pytest.mark.parametrize("tokens", [1, 2, 9, 40])
def test_experts_equal_the_definition(tokens):
    weights = random_experts()
    x = RNG.standard_normal((tokens, 256)).astype(np.float32)
    start = RNG.standard_normal((tokens, 256)).astype(np.float32)
    out, want = start.copy(), start.astype(np.float64)
    Moe(x, weights, out)(tokens)
    reference.experts(x, weights, want)
    assert_close("experts", out, want, ROUNDING)


@pytest.mark.parametrize("tokens", [1, 9])
def test_without_a_shared_expert(tokens):
    weights = random_experts(shared_ffn=0)
    x = RNG.standard_normal((tokens, 256)).astype(np.float32)
    out, want = np.zeros_like(x), np.zeros(x.shape)
    Moe(x, weights, out)(tokens)
    reference.experts(x, weights, want)
    assert_close("experts", out, want, ROUNDING)


@pytest.mark.parametrize("shared_ffn", [256, 0])
def test_types_that_kernels_do_not_read(shared_ffn):
    weights = random_experts(shared_ffn=shared_ffn)
    data = RNG.integers(0, 256, (8, 256, BLOCKS["IQ3_S"].n_bytes), np.uint8)
    data[..., :2] = np.frombuffer(np.float16(0.001).tobytes(), np.uint8)
    weights = weights._replace(up=Matrix(data, "IQ3_S"))
    x = RNG.standard_normal((5, 256)).astype(np.float32)
    out, want = np.zeros((5, 256), np.float32), np.zeros((5, 256))
    Moe(x, weights, out)(5)
    reference.experts(x, weights, want)
    assert_close("experts", out, want, ROUNDING)


def test_fused_gate_and_up():
    weights = random_experts()
    fused = Matrix(np.concatenate([weights.gate.data, weights.up.data], axis=1), "Q4_K")
    halves = weights._replace(gate=fused.rows(slice(0, 256)), up=fused.rows(slice(256, 512)))
    x = RNG.standard_normal((6, 256)).astype(np.float32)
    outs = [np.zeros((6, 256), np.float32) for _ in range(2)]
    for w, out in zip((weights, halves), outs, strict=True):
        Moe(x, w, out)(6)
    assert_same_bits("fused", *outs)


@pytest.mark.parametrize("down", ["Q6_K", "IQ3_S"])
@pytest.mark.parametrize("tokens", [1, 9])
def test_routing_by_sigmoid(tokens, down):
    """The shared expert has no router; a type without kernels takes another way."""
    weights = random_experts(down="Q6_K")._replace(shared_router=None)
    if down == "IQ3_S":
        data = RNG.integers(0, 256, (8, 256, BLOCKS["IQ3_S"].n_bytes), np.uint8)
        data[..., :2] = np.frombuffer(np.float16(0.001).tobytes(), np.uint8)
        weights = weights._replace(down=Matrix(data, "IQ3_S"))
    x = RNG.standard_normal((tokens, 256)).astype(np.float32)
    bias = -2 * (weights.router.unpacked() @ x[0])  # other experts for the first token than without a bias
    weights = weights._replace(routing=SigmoidRouting(bias, 2.5))
    out, want, unbiased = np.zeros_like(x), np.zeros(x.shape), np.zeros(x.shape)
    Moe(x, weights, out)(tokens)
    reference.experts(x, weights, want)
    assert_close("experts", out, want, ROUNDING)
    reference.experts(x, weights._replace(routing=SigmoidRouting(0 * bias, 2.5)), unbiased)
    assert np.abs(unbiased - want).max() > 0.01


@pytest.mark.parametrize("down", ["Q6_K", "IQ3_S"])
@pytest.mark.parametrize("tokens", [1, 9])
def test_gelu_factors_and_another_input_of_the_router(tokens, down):
    weights = random_experts(shared_ffn=0)
    if down == "IQ3_S":
        data = RNG.integers(0, 256, (8, 256, BLOCKS["IQ3_S"].n_bytes), np.uint8)
        data[..., :2] = np.frombuffer(np.float16(0.001).tobytes(), np.uint8)
        weights = weights._replace(down=Matrix(data, "IQ3_S"))
    x, router_x = RNG.standard_normal((2, tokens, 256)).astype(np.float32)
    factors, out, want = RNG.uniform(0.5, 2, 8).astype(np.float32), np.zeros_like(x), np.zeros(x.shape)
    Moe(x, weights, out, router_x=router_x, factors=factors, gelu=True)(tokens)
    reference.experts(x, weights, want, router_x=router_x, factors=factors, gelu=True)
    assert_close("experts", out, want, ROUNDING)


def test_shares_of_sigmoids():
    """A bias decides which experts are selected, but not their shares; these sum to the scale."""
    logits, bias = np.array([[0, 2, -1, 1]], np.float32), np.array([0, 0, 5, 0], np.float32)
    chosen, shares = np.empty((1, 2), np.int32), np.empty((1, 2), np.float32)
    cpu.route_by(logits, bias, 2.0, 2, chosen, shares)
    p = 1 / (1 + np.exp(-logits[0].astype(np.float64)))
    assert chosen.tolist() == [[2, 1]]
    np.testing.assert_allclose(shares[0], 2 * p[[2, 1]] / p[[2, 1]].sum(), rtol=1e-6)
    cpu.route_by(0 * logits, 0 * bias, 1.0, 2, chosen, shares)
    assert chosen.tolist() == [[0, 1]]


def test_ties_go_to_the_lower_number():
    logits = np.zeros((2, 5), np.float32)
    logits[1, 3] = 1
    chosen, shares = np.empty((2, 2), np.int32), np.empty((2, 2), np.float32)
    cpu.route(logits, 2, chosen, shares)
    assert chosen.tolist() == [[0, 1], [3, 0]]
    assert shares[0].tolist() == [0.5, 0.5]


def test_a_token_has_the_same_bits_in_every_batch():
    weights = random_experts()
    x = RNG.standard_normal((33, 256)).astype(np.float32)
    together = np.zeros((33, 256), np.float32)
    Moe(x, weights, together)(33)
    alone = np.zeros((33, 256), np.float32)
    for t in range(33):
        Moe(x[t : t + 1], weights, alone[t : t + 1])(1)
    assert_same_bits("alone", alone, together)
