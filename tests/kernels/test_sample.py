"""Sampling ops: largest logits, sums, candidates, and noise as a function of seed, position and token."""

import numba
import numpy as np
import pytest
from compare import assert_same_bits

from dflash.errors import KernelError
from dflash.kernels import sample
from dflash.kernels.cpu import simd
from dflash.kernels.sample import SampleParams, reference
from dflash.kernels.sample.gumbel import gumbel_of
from dflash.kernels.sample.log import log
from dflash.kernels.sample.params import HostSampleResult, SampleRequest

SIZES = [pytest.param(n, id=name) for name, n in reference.cases()]
RNG = np.random.default_rng(11)


def row(n, *, ties=False):
    logits = 3 * RNG.standard_normal(n).astype(np.float32)
    return np.round(logits) if ties else logits


@numba.njit
def log_of(x, out):
    for i in range(0, len(x), simd.LANES):
        simd.store_f32(out.ctypes.data + 4 * i, log(simd.load_f32(x.ctypes.data + 4 * i)))


@numba.njit
def noise_of(words, out):
    simd.store_f32(out.ctypes.data, gumbel_of(simd.load_i32(words.ctypes.data)))


def test_the_logarithm_is_exact_to_a_bit():
    near_one = 1 + np.arange(-2000, 2000) * np.float32(2**-20)
    x = np.concatenate([near_one, np.exp(RNG.uniform(-87, 88, 16000))]).astype(np.float32)
    out = np.empty_like(x)
    log_of(x, out)
    want = np.log(x.astype(np.float64))
    assert (np.abs(out - want) <= np.spacing(np.abs(want).astype(np.float32)) + 1e-8).all()


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0,) * 4, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_as_published(counter, key, words):
    assert reference.philox(counter, key) == words


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("ties", [False, True], ids=["", "ties"])
def test_the_largest_logit_is_found(n, ties):
    logits = np.stack([row(n, ties=ties) for _ in range(3)])
    logits[1] = -np.inf
    logits[2, ::3] = np.nan
    allowed = RNG.random((3, n)) < 0.5
    allowed[0, -1] = True
    for mask in (None, allowed):
        out, want = np.full(4, -7, np.int32), np.empty(3, np.int32)
        sample.argmax(logits, mask, out=out[:3])
        reference.argmax(logits, mask, out=want)
        assert out.tolist() == [*want, -7]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("ties", [False, True], ids=["", "ties"])
def test_the_k_largest_logits_are_found(n, ties):
    logits = row(n, ties=ties)
    logits[::5] = -np.inf
    for k in sorted({1, 2, min(n, 40), n} & set(range(n + 1))):
        ids, values = np.full(k + 1, -7, np.int32), np.full(k + 1, np.nan, np.float32)
        want_ids, want_values = np.empty(k, np.int32), np.empty(k, np.float32)
        sample.top_k(logits, ids=ids[:k], values=values[:k])
        reference.top_k(logits, ids=want_ids, values=want_values)
        assert ids.tolist() == [*want_ids, -7]
        assert_same_bits("values", values[:k], want_values)
        assert np.isnan(values[k])


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("scale", [1.0, 1.7, 0.1])
def test_log_sum_exp(n, scale):
    logits = row(n)
    assert abs(sample.log_sum_exp(logits, scale) - reference.log_sum_exp(logits, scale)) < 2e-6


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("floor", [-np.inf, -20.0, -5.0, 0.0])
def test_likely_tokens_equal_the_definition(n, floor):
    logits = row(n, ties=True)
    ids, want = np.empty(n, np.int32), np.empty(n, np.int32)
    scaled, want_scaled = np.empty(n, np.float32), np.empty(n, np.float32)
    count, total = sample.likely(logits, 1.4, floor, ids=ids, scaled=scaled)
    want_count, want_total = reference.likely(logits, 1.4, floor, ids=want, scaled=want_scaled)
    assert count == want_count
    assert ids[:count].tolist() == want[:count].tolist()
    assert_same_bits("scaled", scaled[:count], want_scaled[:count])
    assert abs(total / want_total - 1) < 2e-6


CLUSTERS = np.concatenate([[0.0], RNG.uniform(-20.001, -20, 3000)])


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", ["equal", "close", "ties", "wide", "clusters"])
def test_the_nucleus_equals_the_definition(n, kind):
    normal = RNG.standard_normal(n)
    scaled = {
        "equal": np.zeros(n),
        "close": 1e-6 * normal,
        "ties": np.round(normal, 1),
        "wide": 100 * normal,
        "clusters": RNG.choice(CLUSTERS, n),
    }[kind].astype(np.float32)
    scaled -= scaled.max()
    ids = np.arange(n, dtype=np.int32) if kind == "equal" else RNG.permutation(n).astype(np.int32)
    for share in (0.0, 0.3, 0.9, 0.9999, 1.1):
        for total in (0.0, 2.0 * np.exp(scaled.astype(np.float64)).sum()):
            got, want = (ids.copy(), scaled.copy()), (ids.copy(), scaled.copy())
            count = sample.nucleus(*got, share, total)
            assert count == reference.nucleus(*want, share, total)
            assert sorted(zip(*(part[:count] for part in got), strict=True)) == sorted(
                zip(*(part[:count] for part in want), strict=True)
            )


@pytest.mark.parametrize("seed", [0, 1, -1, 2**64 - 1, 0x0123456789ABCDEF])
def test_noise_equals_the_definition(seed):
    ids = np.concatenate([np.arange(200), RNG.integers(0, 250_000, 57)]).astype(np.int32)
    out, want = np.full(258, np.nan, np.float32), np.empty(257, np.float64)
    for position in (0, 7, 262_143):
        sample.gumbel(seed, position, ids, out=out[:257])
        reference.gumbel(seed, position, ids, out=want)
        assert np.abs(out[:257] - want).max() < 1e-6
        assert np.isnan(out[257])


def test_noise_of_a_token_does_not_depend_on_the_others():
    everyone = np.empty(1000, np.float32)
    sample.gumbel(5, 3, np.arange(1000, dtype=np.int32), out=everyone)
    for n in (1, 3, 16, 17, 500):
        some = RNG.choice(1000, n, replace=False).astype(np.int32)
        out = np.empty(n, np.float32)
        sample.gumbel(5, 3, some, out=out)
        assert_same_bits("noise", out, everyone[some])


def test_noise_of_the_extreme_words():
    """The noise of the smallest and largest uniform numbers is right, computed by the kernel's own arithmetic."""
    words = np.array([0, 1, 2**30 - 1, 2**30, 2**31, 2**32 - 2, 2**32 - 1] + [9] * 9, np.uint32).view(np.int32)
    out = np.empty(16, np.float32)
    noise_of(words, out)
    v = (words.view(np.uint32).astype(np.float64) + 0.5) / 2**32
    assert np.abs(out + np.log(-np.log1p(-v))).max() < 2e-6
    assert out.min() > -3.14
    assert out.max() < 22.88


def test_noise_follows_the_gumbel_distribution():
    ids = np.arange(4096, dtype=np.int32)
    noise = np.empty((60, 4096), np.float32)
    for position in range(60):
        sample.gumbel(99, position, ids, out=noise[position])
    uniform = np.sort(np.exp(-np.exp(-noise.astype(np.float64).ravel())))
    steps = np.arange(uniform.size) / uniform.size
    assert np.abs(uniform - steps).max() < 1.95 / np.sqrt(uniform.size)  # Kolmogorov and Smirnov, 0.1 %
    assert np.isfinite(noise).all()
    correlations = np.corrcoef(noise)[np.triu_indices(60, 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(4096)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("scale", [1.0, 0.2, 40.0])
def test_sampled_tokens_equal_the_definition(n, scale):
    logits = row(n)
    ids = np.arange(n, dtype=np.int32)
    scaled = (logits - logits.max()) * np.float32(scale)
    for position, floor in enumerate((-np.inf, -1.0, np.sort(scaled)[n // 2])):
        got = sample.sample(logits, scale, 77, position, floor)
        assert got == reference.sample(logits, scale, 77, position, floor)
        kept = ids[scaled >= floor]
        among = sample.sample_among(kept, scaled[kept], 77, position)
        assert among == got == reference.sample_among(kept, scaled[kept], 77, position)
        assert got == sample.sample_among(ids, scaled, 77, position, floor)


PARAMS = [
    SampleParams(),
    SampleParams(scale=1.0, seed=3),
    SampleParams(scale=1.5, top_k=20, seed=-4),
    SampleParams(scale=0.8, top_p=0.9, seed=5),
    SampleParams(scale=1.0, top_k=40, top_p=0.95, floor=-2.5, seed=2**63 + 6),
    SampleParams(scale=50.0, floor=-1.0, seed=7),
]


def proposals(logits, row_params, positions, width):
    """Return candidates, and those of the definition; check that memory around the arrays is unchanged."""
    n = len(logits)
    ids, scores = np.full((n + 2, width), -7, np.int32), np.full((n + 2, width), np.nan, np.float32)
    want_ids, want_scores = np.empty((n, width), np.int32), np.empty((n, width))
    sample.candidates(logits, row_params, positions, width, ids=ids[1:-1], scores=scores[1:-1])
    reference.candidates(logits, row_params, positions, width, ids=want_ids, scores=want_scores)
    assert (ids[[0, -1]] == -7).all()
    assert np.isnan(scores[[0, -1]]).all()
    return ids[1:-1], scores[1:-1], want_ids, want_scores


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("width", [1, 16, 64])
def test_candidates_equal_the_definition(n, width):
    logits = np.stack([row(n, ties=i == 0) for i in range(len(PARAMS))])
    ids, scores, want_ids, want_scores = proposals(logits, PARAMS, range(len(PARAMS)), width)
    assert ids.tolist() == want_ids.tolist()
    there = want_ids >= 0
    assert np.abs(scores[there] - want_scores[there]).max() < 1e-5
    assert (scores[~there] == -np.inf).all()
    if n > 64 == width:
        assert (there.sum(axis=1)[:2] == 64).all()
        assert (there.sum(axis=1)[2:] < 64).all()


@pytest.mark.parametrize("law", PARAMS, ids=lambda law: f"T {1 / law.scale:g}" if law.scale else "greedy")
def test_the_first_candidate_is_the_token_that_the_target_would_draw(law):
    """The first candidate is the target's token if draft and target logits are equal."""
    logits = np.stack([4 * row(3000) for _ in range(50)])
    ids, scores = np.empty((50, 8), np.int32), np.empty((50, 8), np.float32)
    sample.candidates(logits, [law] * 50, range(50), 8, ids=ids, scores=scores)
    assert ids[:, 0].tolist() == [sample.sample_one(logits[i], law, i) for i in range(50)]
    assert (scores[:, 1:] <= scores[:, :-1]).all()
    assert (np.exp(scores).sum(axis=1) < 1 + 1e-5).all()


def test_candidates_of_a_row_do_not_depend_on_the_others():
    logits = np.stack([row(3000) for _ in PARAMS])
    ids, scores, _, _ = proposals(logits, PARAMS, range(len(PARAMS)), 12)
    for i in range(len(PARAMS)):
        alone_ids, alone_scores, _, _ = proposals(logits[i : i + 1], PARAMS[i : i + 1], [i], 12)
        assert alone_ids.tolist() == [ids[i].tolist()]
        assert_same_bits("scores", alone_scores[0], scores[i])


def test_candidates_of_fewer_tokens():
    """A draft vocabulary gives the candidates of a full row in which all other tokens are minus infinity."""
    targets = np.sort(np.random.default_rng(1).permutation(3000)[:700]).astype(np.int32)
    few = np.stack([row(700) for _ in PARAMS])
    wide = np.full((len(PARAMS), 3000), -np.inf, np.float32)
    wide[:, targets] = few
    want = np.empty((len(PARAMS), 12), np.int32), np.empty((len(PARAMS), 12), np.float32)
    got = np.empty_like(want[0]), np.empty_like(want[1])
    sample.candidates(wide, PARAMS, range(len(PARAMS)), 12, ids=want[0], scores=want[1])
    sample.candidates(few, PARAMS, range(len(PARAMS)), 12, ids=got[0], scores=got[1], targets=targets)
    assert got[0].tolist() == want[0].tolist()
    there = want[0] >= 0
    assert np.abs(got[1][there] - want[1][there]).max() < 1e-5


def test_nothing_to_propose():
    for nothing in (np.nan, -np.inf):
        logits = np.full((len(PARAMS), 70), nothing, np.float32)
        ids, scores = np.empty((len(PARAMS), 3), np.int32), np.empty((len(PARAMS), 3), np.float32)
        sample.candidates(logits, PARAMS, range(len(PARAMS)), 3, ids=ids, scores=scores)
        assert (ids == -1).all()
        assert (scores == -np.inf).all()
    logits[:, 5] = 1.0
    ids, scores, want_ids, want_scores = proposals(logits, PARAMS, range(len(PARAMS)), 3)
    assert ids.tolist() == want_ids.tolist() == [[5, -1, -1]] * len(PARAMS)
    assert np.abs(scores[:, 0] - want_scores[:, 0]).max() < 1e-6


def test_nothing_to_sample():
    assert sample.sample(np.full(70, -np.inf, np.float32), 1.0, 0, 0) == -1
    assert sample.sample(np.full(70, np.nan, np.float32), 1.0, 0, 0) == -1
    assert sample.sample_among(np.empty(0, np.int32), np.empty(0, np.float32), 0, 0) == -1


def test_requests_out_of_range_are_refused():
    logits = np.zeros((2, 8), np.float32)
    with pytest.raises(KernelError, match=r"out: wanted contiguous int32 \(2,\), got int64"):
        sample.argmax(logits, out=np.zeros(2, np.int64))
    with pytest.raises(KernelError, match="logits: wanted contiguous float32"):
        sample.argmax(logits[:, ::2], out=np.zeros(2, np.int32))
    with pytest.raises(KernelError, match="allowed"):
        sample.argmax(logits, np.ones((2, 7), bool), out=np.zeros(2, np.int32))
    with pytest.raises(KernelError, match="1 to 8 tokens, has room for 9"):
        sample.top_k(logits[0], ids=np.zeros(9, np.int32), values=np.zeros(9, np.float32))
    with pytest.raises(KernelError, match="1 to 64 for each of 2 rows, got 65, 2 parameters, 2 positions"):
        sample.candidates(
            logits, [SampleParams()] * 2, [0, 1], 65, ids=np.zeros((2, 65), np.int32), scores=np.zeros((2, 65))
        )


@pytest.mark.parametrize("n", [100, 5000, 70_001])
def test_nan_is_as_if_it_were_not_there(n):
    """Tokens, sums and shares of a row with NaN equal those of the row with minus infinity instead."""
    rng = np.random.default_rng(n)
    row = (3 * rng.standard_normal(n)).astype(np.float32)
    row[rng.integers(0, n, n // 2)] = np.nan
    clean = np.where(np.isnan(row), -np.inf, row).astype(np.float32)
    assert sample.log_sum_exp(row) == sample.log_sum_exp(clean)
    for params in (SampleParams(1.0, top_p=0.9, seed=6), SampleParams(0.3, top_p=0.95, seed=7), SampleParams(1.0, seed=5)):
        drawn = [
            HostSampleResult(rows[None], [SampleRequest(params, 0, [i])]).token(0)
            for i in range(40)
            for rows in (row, clean)
        ]
        assert drawn[::2] == drawn[1::2], params
