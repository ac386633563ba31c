"""Masks of grammars in the sampling kernels: the tokens and log-probabilities of the CPU, whatever a mask leaves."""

import numpy as np
import pytest
from compare import assert_same_bits
from logit_rows import logit_rows
from lossless import PROMPTS, demo
from word_grammar import WordGrammar, words_of
from written import run

from dflash.decode.drafters.ddtree import DDTree
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.grammar.state import GrammarState
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.kernels.sample import reference
from dflash.kernels.sample.params import HostSampleResult, LogitEdits, Offsets, SampleParams, SampleRequest

cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("dflash.kernels.sample.cuda")

RNG = np.random.default_rng(21)
PARAMS = [
    SampleParams(),
    SampleParams(1.0, seed=5),
    SampleParams(1.0, floor=-1.5, seed=2**64 - 1),
    SampleParams(0.25, seed=-1),
    SampleParams(40.0, seed=9),
    SampleParams(1.25, top_k=1, seed=1),
    SampleParams(1.25, top_k=20, top_p=0.90625, floor=-3.0, seed=3),
    SampleParams(0.75, top_k=300, top_p=0.5, seed=4),
    SampleParams(1.0, top_k=3000, seed=4),
    SampleParams(1.0, top_p=0.9, seed=6),
    SampleParams(1.5, top_p=0.999, floor=-5.0, seed=8),
    SampleParams(0.0078125, top_p=0.5, seed=10),
    SampleParams(1.0, top_p=0.0, seed=8),
]
MASKS = "all", "half", "one", "few", "whole words", "nothing", "what is minus infinity", "not the largest", "none at all"


def rows_of(n, kind):
    return logit_rows(RNG, len(PARAMS), n, kind)


def mask_of(row, kind):
    """Words of one of `MASKS`; None for no mask."""
    n = len(row)
    if kind == "none at all":
        return None
    if kind == "what is minus infinity":
        return words_of(np.flatnonzero(~(row > -np.inf)), n)
    if kind == "not the largest":
        order = np.argsort(np.where(np.isnan(row), -np.inf, row))
        return words_of(order[: -max(1, n // 50)], n)
    if kind == "whole words":
        return -RNG.integers(0, 2, -(-n // 32)).astype(np.uint32)
    n_allowed = {"all": n, "half": n // 2, "one": 1, "few": min(n, 5), "nothing": 0}[kind]
    return words_of(RNG.choice(n, n_allowed, replace=False), n)


def on_device(rows):
    return cuda.DeviceSampler(cupy.asarray(rows)).rows(len(rows))


def tokens(result, n):
    return [result.token(i) for i in range(n)]


@pytest.mark.parametrize("n", [1, 7, 63, 129, 1000, 4099, 248_320])
@pytest.mark.parametrize("kind", ["normal", "ties", "equal", "holes", "peaked"])
def test_tokens_are_those_of_the_cpu(n, kind):
    rows = rows_of(n, kind)
    logits = on_device(rows)
    for shift in range(len(MASKS) if n < 10_000 else 2):
        kinds = [MASKS[(i + shift) % len(MASKS)] for i in range(len(rows))]
        masks = [mask_of(row, one) for row, one in zip(rows, kinds, strict=True)]
        requests = [
            SampleRequest(params, i, [1000 + i], masks={} if words is None else {0: words})
            for i, (params, words) in enumerate(zip(PARAMS, masks, strict=True))
        ]
        found, wanted = logits.sample_rows(requests), HostSampleResult(rows, requests)
        differing = [
            (PARAMS[i], kinds[i], found.token(i), wanted.token(i))
            for i in range(len(rows))
            if found.token(i) != wanted.token(i)
        ]
        assert not differing
        assert all((found.token(i) == -1) for i, one in enumerate(kinds) if one == "nothing")
    assert_same_bits("logits", np.asarray(logits), rows)


def test_the_bits_beyond_the_vocabulary_do_not_count():
    rows = np.array([[1, 3, 2, 9, 9, 9, 9]], np.float32)
    for params in (PARAMS[0], PARAMS[1], PARAMS[6], PARAMS[9]):
        request = SampleRequest(params, 0, [3], masks={0: np.array([0xFFFFFF84], np.uint32)})
        assert on_device(rows).sample_rows([request]).token(0) == 2


@pytest.mark.parametrize("n", [63, 4099, 248_320])
def test_some_rows_of_trees_with_edits_and_log_probabilities(n):
    """Log-probabilities are those of rows without edits and masks."""
    rows = rows_of(n, "normal")
    ids = RNG.choice(n, min(n, 30), replace=False)
    edits = LogitEdits(
        ids,
        RNG.integers(0, 4, len(ids)).astype(np.float32),
        [{}, {int(ids[0]): 2.0}, {int(ids[1]): 1.0, 7: 1.0}, {}],
        1.3,
        0.7,
        -0.4,
        Offsets.of([(int(token), 4.0) for token in ids[5:9]]),
    )
    half = {row: mask_of(rows[row], "half") for row in range(12)}
    requests = [
        SampleRequest(SampleParams(0.875, seed=3, n_top=4), 0, range(10, 14), edits, {0: half[0], 2: half[2]}),
        SampleRequest(SampleParams(1.125, top_k=5, seed=4), 4, range(3), None, {1: half[5]}),
        SampleRequest(SampleParams(n_top=2), 7, range(2), None, {0: half[7], 1: mask_of(rows[8], "one")}),
        SampleRequest(SampleParams(1.0, top_p=0.9, seed=2, n_top=0), 9, range(3), None, {2: half[11]}),
    ]
    logits = on_device(rows)
    found, wanted = logits.sample_rows(requests), HostSampleResult(rows, requests)
    assert tokens(found, 12) == tokens(wanted, 12)
    for row in (*range(4), *range(7, 12)):
        exact = rows[row].astype(np.float64) - reference.log_sum_exp(rows[row])
        assert found.top(row).logprob == pytest.approx(exact[found.token(row)], abs=1e-6)
        assert [token for token, _ in found.top(row).top] == [token for token, _ in wanted.top(row).top]
    assert_same_bits("logits", np.asarray(logits), rows)
    without = [request._replace(masks={}) for request in requests]
    assert tokens(logits.sample_rows(without), 12) == tokens(HostSampleResult(rows, without), 12), (
        "masks of a step end with it"
    )


def test_more_masks_than_before():
    rows = np.repeat(rows_of(1000, "normal"), 5, axis=0)[:64]
    logits = on_device(rows)
    for n in (1, 3, 64, 2, 33):
        masks = {row: mask_of(rows[row], "half") for row in RNG.choice(64, n, replace=False).tolist()}
        requests = [SampleRequest(SampleParams(1.0, seed=n), 0, range(64), masks=masks)]
        assert tokens(logits.sample_rows(requests), 64) == tokens(HostSampleResult(rows, requests), 64)


def rule(path):
    """A third of 4,096 ids, others at each position; at every fourth position one of eight."""
    n = len(path)
    return set(range(300 + n, 308 + n)) if n % 4 == 3 else {token for token in range(4096) if (token * 7 + n) % 3 == 0}


SAMPLINGS = {
    "greedy": {},
    "T 0.8, top-k, top-p": {"temperature": 0.8, "top_k": 40, "top_p": 0.9},
    "T 1, penalties, bias": {"temperature": 1.0, "repetition_penalty": 1.2, "logit_bias": {9: 3.0, 302: 2.0}},
}


def drafted_and_free(model, settings):
    """Run sessions with several drafters under a grammar, and one without a grammar, in one batch."""
    sampling = Sampling(**settings, seed=3, logprobs=3)
    strategies = [Plain(), Strategy(MTP()), Strategy(DFlash()), DDTree(budget=22)]
    sessions = [
        Session(
            PROMPTS[i], sampling=sampling, strategy=strategy, max_tokens=16, grammar=WordGrammar(rule, n_vocab=model.n_vocab)
        )
        for i, strategy in enumerate(strategies)
    ]
    free = Session(PROMPTS[7], sampling=sampling, max_tokens=16)
    run(model, *sessions, free)
    return [*sessions, free]


@pytest.mark.parametrize("name", SAMPLINGS)
def test_constrained_sessions_are_those_of_the_cpu_sampler(name, monkeypatch):
    model, copied = demo("cuda").model, []
    row_of = cuda.DeviceSampler.row
    monkeypatch.setattr(cuda.DeviceSampler, "row", lambda self, i: copied.append(i) or row_of(self, i))
    found = drafted_and_free(model, SAMPLINGS[name])
    assert not copied, "no row is copied to the host"
    monkeypatch.setattr(GrammarState, "prepare", lambda self, draft, n_vocab: None)  # as after an error: row by row
    wanted = drafted_and_free(model, SAMPLINGS[name])
    assert copied
    assert sum(session.n_drafted for session in found) > 0
    for one, other in zip(found, wanted, strict=True):
        assert one.output_ids == other.output_ids
        assert all(token in rule(one.output_ids[:i]) for i, token in enumerate(one.output_ids)) or one is found[-1]
        for got, exact in zip(one.logprobs, other.logprobs, strict=True):
            assert got.logprob == pytest.approx(exact.logprob, abs=1e-5)
            assert [token for token, _ in got.top] == [token for token, _ in exact.top]
