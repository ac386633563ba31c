"""Draws on a GPU are those of the CPU, token for token."""

import numpy as np
import pytest
from compare import assert_same_bits
from logit_rows import logit_rows

from dflash.errors import KernelError
from dflash.kernels.sample import reference
from dflash.kernels.sample.params import HostSampleResult, LogitEdits, Offsets, SampleParams, SampleRequest

cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("dflash.kernels.sample.cuda")

RNG = np.random.default_rng(12)


SIZES = [1, 2, 7, 63, 129, 1000, 4099, 20_000, 248_320]
PARAMS = [
    SampleParams(),
    SampleParams(1.0, seed=5),
    SampleParams(1.0, floor=-1.5, seed=2**64 - 1),
    SampleParams(0.2, seed=-1),
    SampleParams(40.0, seed=9),
    SampleParams(1.0, top_k=1, seed=1),
    SampleParams(1.25, top_k=20, seed=2),
    SampleParams(1.25, top_k=20, top_p=0.9, floor=-3.0, seed=3),
    SampleParams(0.8, top_k=300, top_p=0.5, seed=4),
    SampleParams(1.0, top_k=3000, seed=4),
    SampleParams(0.1, top_k=3000, top_p=0.97, seed=4),
    SampleParams(1.0, top_p=0.9, seed=6),
    SampleParams(0.3, top_p=0.95, seed=7),
    SampleParams(1.6, top_p=0.999, floor=-5.0, seed=8),
    SampleParams(1.0, top_p=0.0, seed=8),
    SampleParams(0.01, top_p=0.5, seed=10),
    SampleParams(100.0, top_k=5, top_p=0.3, seed=11),
    SampleParams(1.0, top_k=10**9, seed=12),
]


def f32(law):
    return law if law.scale is None else law._replace(scale=float(np.float32(law.scale)))


PARAMS = [f32(law) for law in PARAMS]


def rows_of(n, kind):
    return logit_rows(RNG, len(PARAMS), n, kind)


def sampler(rows):
    return cuda.DeviceSampler(cupy.asarray(rows)).rows(len(rows))


def tokens(logits, asks, n):
    draws = logits.sample_rows(asks)
    return [draws.token(i) for i in range(n)]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", ["normal", "ties", "equal", "holes", "peaked", "masked"])
def test_draws_are_those_of_the_cpu(n, kind):
    rows = rows_of(n, kind)
    asks = [SampleRequest(law, i, [1000 + i]) for i, law in enumerate(PARAMS)]
    device = sampler(rows)
    got = tokens(device, asks, len(PARAMS))
    want = tokens_of_cpu(rows, asks)
    wrong = [(PARAMS[i], g, w) for i, (g, w) in enumerate(zip(got, want, strict=True)) if g != w]
    assert not wrong
    assert tokens(device, asks, len(PARAMS)) == got, "two runs"


def tokens_of_cpu(rows, asks):
    draws = HostSampleResult(rows, asks)
    return [draws.token(i) for i in range(len(rows))]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("n_rows", [1, 5, 64])
def test_argmax(n, n_rows):
    rows = np.round(2 * RNG.standard_normal((n_rows, n))).astype(np.float32)
    rows[0, ::2] = np.nan
    rows[-1] = -0.0
    rows[-1, n // 2 :] = 0.0
    want = np.empty(n_rows, np.int32)
    reference.argmax(rows, out=want)
    assert tokens(sampler(rows), [SampleRequest(SampleParams(), 0, range(n_rows))], n_rows) == want.tolist()


def test_an_infinite_logit():
    rows = rows_of(5000, "normal")
    rows[:, 77] = np.inf
    asks = [SampleRequest(law, i, [7]) for i, law in enumerate(PARAMS)]
    assert tokens(sampler(rows), asks, len(PARAMS)) == [77 if law.scale is None else -1 for law in PARAMS]


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_nothing_to_draw(value):
    rows = np.full((len(PARAMS), 5000), value, np.float32)
    asks = [SampleRequest(law, i, [7]) for i, law in enumerate(PARAMS)]
    assert tokens(sampler(rows), asks, len(PARAMS)) == [-1] * len(PARAMS)
    assert tokens(sampler(rows), [SampleRequest(SampleParams(), 0, range(len(PARAMS)))], len(PARAMS)) == [-1] * len(PARAMS)


def test_a_row_in_any_company():
    rows = rows_of(50_000, "normal")
    together = tokens(sampler(rows), [SampleRequest(law, i, [i]) for i, law in enumerate(PARAMS)], len(PARAMS))
    for i in (0, 1, 6, 11, 13):
        assert tokens(sampler(rows[i : i + 1]), [SampleRequest(PARAMS[i], 0, [i])], 1) == [together[i]]
        many = np.concatenate([rows_of(50_000, "ties")[:3], rows[i : i + 1]])
        asks = [SampleRequest(PARAMS[13], 0, [0, 1, 2]), SampleRequest(PARAMS[i], 3, [i])]
        assert tokens(sampler(many), asks, 4)[3] == together[i]


def test_positions_and_seeds_are_of_a_row():
    rows = np.repeat(rows_of(3000, "normal")[:1], 40, axis=0)
    asks = [SampleRequest(SampleParams(1.0, seed=1), 0, range(20)), SampleRequest(SampleParams(1.0, seed=2), 20, range(20))]
    got = tokens(sampler(rows), asks, 40)
    assert got == tokens_of_cpu(rows, asks)
    assert len(set(got)) > 20


@pytest.mark.parametrize("n", [1, 7, 1000, 248_320])
@pytest.mark.parametrize("kind", ["normal", "ties", "equal", "holes"])
def test_log_probabilities(n, kind):
    rows = rows_of(n, kind)[:6]
    rows = np.where(np.isnan(rows), -np.inf, rows).astype(np.float32)
    row_params = [
        SampleParams(n_top=0),
        SampleParams(n_top=1),
        f32(SampleParams(0.7, seed=3, n_top=5)),
        SampleParams(n_top=128),
        SampleParams(n_top=129),
        SampleParams(),
    ]
    asks = [SampleRequest(law, i, [i]) for i, law in enumerate(row_params)]
    draws, host = sampler(rows).sample_rows(asks), HostSampleResult(rows, asks)
    for i, law in enumerate(row_params[:-1]):
        assert draws.token(i) == host.token(i)
        got, exact = draws.top(i), rows[i].astype(np.float64) - reference.log_sum_exp(rows[i])
        assert got.logprob == pytest.approx(exact[host.token(i)], abs=5e-5 if law.n_top > 128 else 1e-6)
        assert [token for token, _ in got.top] == [token for token, _ in host.top(i).top]
        assert [value for _, value in got.top] == pytest.approx([exact[token] for token, _ in got.top], abs=5e-5)


def test_rows_come_back():
    rows = rows_of(999, "normal")
    logits = sampler(rows)
    assert logits.shape == rows.shape
    assert len(logits) == len(rows)
    assert_same_bits("row", logits[3], rows[3])
    assert_same_bits("last", logits[-1], rows[-1])
    part = logits[2:5]
    assert part.shape == (3, 999)
    assert_same_bits("row of a part", part[1], rows[3])
    assert_same_bits("all", np.asarray(logits), rows)
    assert_same_bits("part", np.asarray(part), rows[2:5])
    with pytest.raises(IndexError):
        part[3]
    asks = [SampleRequest(PARAMS[6], 0, [4, 5, 6])]
    assert tokens(part, asks, 3) == tokens_of_cpu(rows[2:5], asks)


def test_refused():
    with pytest.raises(KernelError, match="there must be fewer than 524288"):
        cuda.DeviceSampler(cupy.zeros((1, 1 << 19), np.float32))


def test_a_second_step_does_not_disturb_the_first():
    rows = rows_of(4000, "normal")
    logits = sampler(rows)
    first = logits.sample_rows([SampleRequest(PARAMS[1], 0, range(9))])
    second = logits.sample_rows([SampleRequest(PARAMS[1], 0, range(100, 109))])
    assert [first.token(i) for i in range(9)] == tokens_of_cpu(rows[:9], [SampleRequest(PARAMS[1], 0, range(9))])
    assert [second.token(i) for i in range(9)] == tokens_of_cpu(rows[:9], [SampleRequest(PARAMS[1], 0, range(100, 109))])


def random_edits(n, n_text, n_rows):
    """Of a text and drafts whose tokens are in part those of the text."""
    ids = RNG.choice(n, min(n, n_text), replace=False)
    produced = RNG.integers(0, 4, len(ids)).astype(np.float32)
    tokens = np.concatenate([ids[:5], RNG.integers(0, n, 6)]).tolist()
    drafts = [{}] + [dict.fromkeys(tokens[: i + 1], float(i + 1)) for i in range(n_rows - 1)]
    bias = Offsets.of([(int(token), float(RNG.normal())) for token in RNG.choice(n, min(n, 7), replace=False)])
    return LogitEdits(ids, produced, drafts, 1.3, 0.7, -0.4, bias)


@pytest.mark.parametrize("n", [7, 1000, 248_320])
@pytest.mark.parametrize("kind", ["normal", "ties", "holes"])
def test_edits_are_made_and_taken_back(n, kind):
    rows = rows_of(n, kind)[:16]
    rows = np.where(np.isnan(rows), -np.inf, rows).astype(np.float32)
    asks = [
        SampleRequest(f32(SampleParams(0.9, seed=3)), 0, range(10, 14), random_edits(n, 40, 4)),
        SampleRequest(f32(SampleParams(1.1, top_k=5, seed=4, n_top=3)), 4, range(5), random_edits(n, 6000, 5)),
        SampleRequest(
            SampleParams(), 9, range(3), random_edits(n, 0, 3)._replace(repetition=1.0, presence=0.0, frequency=0.0)
        ),
        SampleRequest(SampleParams(n_top=2), 12, range(4)),
    ]
    logits = sampler(rows)
    draws, host = logits.sample_rows(asks), HostSampleResult(rows, asks)
    assert [draws.token(i) for i in range(16)] == [host.token(i) for i in range(16)]
    for i in (4, 8, 12):
        exact = rows[i].astype(np.float64) - reference.log_sum_exp(rows[i])
        assert draws.top(i).logprob == pytest.approx(exact[draws.token(i)], abs=1e-6)
        assert [token for token, _ in draws.top(i).top] == [token for token, _ in host.top(i).top]
    assert_same_bits("as before", np.asarray(logits), rows)
    assert [logits.sample_rows(asks).token(i) for i in range(16)] == [host.token(i) for i in range(16)], "two runs"


def test_room_for_edits_grows():
    rows = rows_of(100_000, "normal")[:2]
    asks = [SampleRequest(SampleParams(1.0, seed=1), 0, range(2), random_edits(100_000, 50_000, 2))]
    logits = sampler(rows)
    assert tokens(logits, asks, 2) == tokens_of_cpu(rows, asks)
    assert_same_bits("as before", np.asarray(logits), rows)
