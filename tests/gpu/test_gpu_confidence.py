"""On a GPU: capped numbers, and how far the draft tokens of a draft are to be trusted."""

from itertools import pairwise

import numpy as np
import pytest
from compare import assert_close

from dflash.kernels.confidence import reference
from dflash.kernels.soft_cap import reference as capped

cupy = pytest.importorskip("cupy")
cap_cuda = pytest.importorskip("dflash.kernels.soft_cap.cuda")
cuda = pytest.importorskip("dflash.kernels.confidence.cuda")

RNG = np.random.default_rng(5)
CASES, CAPPED = list(reference.cases()), list(capped.cases())
EPS = 1e-6


def normal(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize(("name", "rows", "width", "cap"), CAPPED, ids=[name for name, *_ in CAPPED])
def test_soft_cap(name, rows, width, cap):
    x = 3 * np.float32(cap) * normal(rows + 1, width)
    there = cupy.asarray(x)
    cap_cuda.SoftCap(there, cap)(rows)
    got = there.get()
    assert_close(name, got[:rows], capped.soft_cap(x[:rows], cap), 5e-7)
    np.testing.assert_array_equal(got[rows], x[rows])


@pytest.mark.parametrize(("name", "texts", "each", "lead", "width", "rank"), CASES, ids=[name for name, *_ in CASES])
def test_reach(name, texts, each, lead, width, rank):
    """For bounds that lie between two products."""
    stream, codes, gain = 5 * normal(texts * each, width), normal(each, texts, rank), 1 + 0.2 * normal(width)
    weight = np.concatenate([normal(width) / np.float32(np.sqrt(width)), normal(rank) / np.float32(np.sqrt(rank))])
    exact = stream.astype(np.float64)
    hidden = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + EPS) * gain
    by_text = hidden.reshape(texts, each, width)[:, lead:]
    held = [reference.confidence(by_text[s], codes[lead:, s], weight.astype(np.float64), 2.0) for s in range(texts)]
    products = np.sort(np.cumprod(held, axis=1).reshape(-1))
    bounds = [0.0, *((a + b) / 2 for a, b in pairwise(products) if b - a > 1e-4 * b), 1.0]
    head = {"bias": 2.0, "eps": EPS, "lead": lead}
    for least in bounds[:: max(1, len(bounds) // 8)]:
        made = cuda.Reach(cupy.asarray(stream), cupy.asarray(codes), gain, weight, **head, least=least)
        made(texts)
        assert made.reach.get().tolist() == [reference.reach(of_text, least) for of_text in held], name
