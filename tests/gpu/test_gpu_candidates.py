"""What the rows of a draft propose on a GPU is what they propose on the CPU."""

import numpy as np
import pytest

from dflash.kernels import sample
from dflash.kernels.sample.candidates import POOL
from dflash.kernels.sample.params import SampleParams

cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("dflash.kernels.sample.cuda_candidates")
device = pytest.importorskip("dflash.kernels.gpu.device")

RNG = np.random.default_rng(3)
PARAMS = [
    SampleParams(),
    SampleParams(1.0, seed=5),
    SampleParams(0.5, seed=-1),
    SampleParams(1.25, top_k=7, seed=2),
    SampleParams(1.25, top_k=20, top_p=0.9, floor=-3.0, seed=2**64 - 1),
    SampleParams(1.0, top_p=0.6, seed=6),
    SampleParams(2.0, floor=-1.0, seed=7),
    SampleParams(1.0, top_p=0.0, seed=8),
]


def rows_of(n, vocab, kind):
    x = (3 * RNG.standard_normal((n, vocab))).astype(np.float32)
    if kind == "ties":
        return np.round(x)
    if kind == "holes":
        x[:, RNG.integers(0, vocab, vocab // 2)] = -np.inf
    return x


@pytest.mark.parametrize("vocab", [1, 7, 64, 65, 1000, 20_001, 248_320])
@pytest.mark.parametrize("kind", ["normal", "ties", "holes"])
def test_candidates(vocab, kind):
    """The same tokens in the same order; scores but for the last bits of a sum over the vocabulary."""
    each, n = 3, 3 * len(PARAMS)
    rows, position = rows_of(n, vocab, kind), RNG.integers(0, 10_000, n).astype(np.int32)
    row_params = np.zeros((len(PARAMS), cuda.ROW_PARAMS.itemsize // 4), np.int32)
    cuda.describe(row_params, PARAMS)
    op = cuda.FindCandidates(cupy.asarray(rows), cupy.asarray(row_params), cupy.asarray(position), each=each, shift=2)
    for array in (op.ids, op.scores):
        array.fill(77)
    op(n)
    ids, scores = np.empty((n, POOL), np.int32), np.empty((n, POOL), np.float32)
    by_row = [law for law in PARAMS for _ in range(each)]
    sample.candidates(rows, by_row, (position + 2).tolist(), POOL, ids=ids, scores=scores)
    got = op.ids.get()
    np.testing.assert_array_equal(got, ids)
    np.testing.assert_allclose(op.scores.get(), scores, rtol=0, atol=5e-5)  # the CPU's own sum is good to 3e-5 here
    op(n)
    np.testing.assert_array_equal(op.ids.get(), got, "two runs")


@pytest.mark.parametrize("vocab", [1, 7, 1000, 248_320])
@pytest.mark.parametrize("kind", ["normal", "ties", "holes"])
def test_largest(vocab, kind):
    rows = rows_of(16, vocab, kind)
    op = cuda.Largest(cupy.asarray(rows))
    for _ in range(2):
        op(16)
        found = np.where(rows.max(axis=1) > -np.inf, rows.argmax(axis=1), -1)
        np.testing.assert_array_equal(op.ids.get()[:, 0], found)
        np.testing.assert_array_equal(op.scores.get()[:, 0], rows.max(axis=1))


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_nothing_to_propose(value):
    rows = np.full((2, 5000), value, np.float32)
    row_params = np.zeros((2, cuda.ROW_PARAMS.itemsize // 4), np.int32)
    cuda.describe(row_params, PARAMS[:2])
    op = cuda.FindCandidates(cupy.asarray(rows), cupy.asarray(row_params), device.zeros(2, dtype=np.int32), each=1, shift=0)
    op(2)
    assert (op.ids.get() == -1).all()
    assert np.isneginf(op.scores.get()).all()


def test_rows_of_a_forward():
    """Some rows of a sampler's logits, each with its own law and position."""
    logits = (
        pytest.importorskip("dflash.kernels.sample.cuda")
        .DeviceSampler(cupy.asarray(rows := rows_of(9, 5000, "normal")))
        .rows(9)
    )
    chosen, positions = [8, 1, 4], [30, 20, 1000]
    row_params = [PARAMS[0], PARAMS[4], PARAMS[1]]
    ids, scores = np.empty((3, 5), np.int32), np.empty((3, 5), np.float32)
    sample.candidates(rows[chosen], row_params, positions, 5, ids=ids, scores=scores)
    for part, shift in ((logits, 0), (logits[1:], 1)):
        got = part.candidates([row - shift for row in chosen], row_params, positions, 5)
        np.testing.assert_array_equal(got[0], ids)
        np.testing.assert_allclose(got[1], scores, rtol=0, atol=2e-5)
