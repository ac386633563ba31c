"""Experts on a GPU that differ: selection by sigmoids, factors of shares, GELU, a gain of the router, a sum of its own."""

import numpy as np
import pytest
from compare import assert_close, assert_same_bits
from experts import random_experts

from dflash.errors import KernelError
from dflash.kernels.formats import Matrix
from dflash.kernels.moe import SigmoidRouting, reference
from dflash.kernels.moe.moe_kind import MoeKind

cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("dflash.kernels.moe.cuda")
cuda_prefill = pytest.importorskip("dflash.kernels.moe.cuda_prefill")

ROWS, EPS, TOLERANCE = 40, 1e-6, 2e-3
PASSES = {
    "decode": (cuda.DecodeScratch, cuda.DecodeMoe),
    "prompt": (cuda_prefill.PrefillScratch, cuda_prefill.PrefillMoe),
}
SHAPES = {"more than half": (5, 3), "of many": (70, 8)}
"""Experts and how many a token uses."""


class Layer:
    """Experts of one kind; `sigmoid` as in Laguna, else as beside the feed forward in Gemma 4."""

    def __init__(self, made, shape, *, sigmoid):
        rng = np.random.default_rng(7)
        n, n_used = shape
        weights = random_experts("Q4_K", "Q6_K", n=n, n_used=n_used, shared_ffn=512 if sigmoid else 0)
        gain, own_gain = (1 + rng.standard_normal((2, 256)) / 10).astype(np.float32)
        gain /= 256**0.5 * weights.gate.unpacked().std()  # no product is too large for float16
        self.given, kind = {}, MoeKind()
        self.stream, self.sums = (cupy.full((ROWS + 1, 256), np.nan, np.float32) for _ in range(2))
        self.out = self.stream
        of_router = weights.router.unpacked()
        if sigmoid:
            bias = rng.standard_normal(n).astype(np.float32) / 4
            weights = weights._replace(shared_router=None, routing=SigmoidRouting(bias, 2.5))
        else:
            self.given = {"factors": rng.uniform(0.5, 2, n).astype(np.float32), "gelu": True}
            self.out = self.sums
            factors = cupy.asarray(self.given["factors"])
            kind = MoeKind(gelu=True, factors=factors, own_gain=True, out=self.out[:ROWS])
            of_router = (of_router * own_gain).astype(np.float32)
        self.gain, self.own_gain, self.host = gain, gain if sigmoid else own_gain, weights
        device = cuda.upload(weights._replace(router=Matrix(of_router.view(np.uint8), "F32")))
        self.counts, self.scratch = cupy.zeros(2, np.int32), made[0](ROWS, device)
        for name, array in vars(self.scratch).items():
            if name not in ("rows", "arrived"):
                array.view(np.uint8)[...] = 255
        args = self.stream[:ROWS], cupy.asarray(gain), device, self.counts, self.scratch
        self.moe = made[1](*args, eps=EPS, kind=kind)

    def __call__(self, x, bucket=None):
        """Return what the experts add to the rows of `x`; check that no other row changes."""
        n = len(x)
        self.counts[:] = n
        for array in (self.stream, self.sums):
            array[:], array[:n] = np.nan, cupy.asarray(x)
        self.moe(bucket or n)
        for array in (self.stream, self.sums):
            assert np.isnan(array[n:].get()).all()
        if self.out is not self.stream:
            assert_same_bits("stream", self.stream[:n].get(), x)
        return self.out[:n].get() - x

    def want(self, x):
        out, unit = np.zeros(x.shape), x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + EPS)
        reference.experts(unit * self.gain, self.host, out, router_x=unit * self.own_gain, **self.given)
        return out


@pytest.mark.parametrize("sigmoid", [True, False], ids=["sigmoids", "factors"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("made", PASSES.values(), ids=PASSES)
def test_the_definition(made, shape, sigmoid):
    layer, x = Layer(made, shape, sigmoid=sigmoid), np.random.default_rng(8).standard_normal((33, 256), np.float32)
    together = layer(x)
    assert_close("33 rows", together, layer.want(x), TOLERANCE)
    for start, n, bucket in ((0, 1, 1), (3, 5, 8), (31, 2, 4), (4, 20, 24)):
        assert_same_bits(f"{n} rows", layer(x[start : start + n], bucket), together[start : start + n])


def test_sigmoids_and_factors_exclude_each_other():
    weights = random_experts()._replace(routing=SigmoidRouting(np.zeros(8, np.float32), 1.0))
    with pytest.raises(KernelError, match="experts that sigmoids select can't have factors"):
        MoeKind(factors=np.ones(8, np.float32)).constants(weights)
