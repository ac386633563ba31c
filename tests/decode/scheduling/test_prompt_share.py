"""Prompts beside sessions that decode: steps keep their time, every prompt makes progress, no token changes."""

from types import SimpleNamespace

import pytest
from ahead_toy import AheadToy
from oracles import naive
from toy import Toy, finish

from dflash.decode import engine as engine_module
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.scheduling.prompt_share import PromptShare
from dflash.decode.session import Session
from dflash.decode.warmup import warm
from dflash.kernels.cpu import warm_marker

N_VOCAB = 13


@pytest.fixture
def costed(monkeypatch):
    """Return a toy and a clock that its forwards advance: 3 ms, 1 ms a decoding row, 0.5 ms a prompt token."""
    toy, clock = Toy(N_VOCAB, rows=600), SimpleNamespace(now=0.0, token=0.5e-3, steps=[])

    def forward(spans):
        n_prompt = sum(len(span.tokens) for span in spans if span.prefill)
        n_decode = sum(len(span.tokens) for span in spans if not span.prefill)
        clock.steps.append((n_decode, n_prompt, 3e-3 + 1e-3 * n_decode + clock.token * n_prompt))
        clock.now += clock.steps[-1][2]

    toy.before_forward = forward
    monkeypatch.setattr(engine_module, "perf_counter", lambda: clock.now)
    return toy, clock


@pytest.mark.parametrize("alignment", [1, 8])
def test_a_long_prompt_delays_no_step_beyond_the_limit(costed, alignment):
    toy, clock = costed
    toy.chunk_alignment = alignment
    engine = Engine(toy, chunk=400, max_step=0.05)
    short = [engine.add(Session([1 + i, 2], max_tokens=60, sampling=Sampling(seed=i))) for i in range(3)]
    for _ in range(4):
        engine.step()
    prompt = [i % 7 for i in range(600)]
    long = engine.add(Session(prompt, max_tokens=3))
    while not long.finished:
        engine.step()
    mixed = [(n, seconds) for decode, n, seconds in clock.steps if decode and n]
    assert mixed[0][0] == 16  # nothing is known of the cost of prompts
    assert max(seconds for _, seconds in mixed) <= 0.05
    assert max(n for n, _ in mixed) >= 64  # 68 would take the 40 ms that it aims at
    finish(engine)
    assert long.output_ids == naive(toy, prompt, Sampling(), 3)
    for i, session in enumerate(short):
        assert session.output_ids == naive(toy, [1 + i, 2], Sampling(), 60, seed=i)


def test_prompts_that_a_device_reads_behind_a_step_count_in_the_next_one(monkeypatch):
    """Nobody waits for them in their own step: the next forward takes as much longer."""
    toy, clock = AheadToy(n_vocab=N_VOCAB, rows=600), SimpleNamespace(now=0.0, later=0.0, longest=0.0, most=0)

    def forward(spans):
        n_prompt = sum(len(span.tokens) for span in spans if span.prefill)
        n_decode = sum(len(span.tokens) for span in spans if not span.prefill)
        if n_decode:
            took = clock.later + 3e-3 + 1e-3 * n_decode
            clock.now, clock.later = clock.now + took, 0.0
            clock.longest = max(clock.longest, took)
        clock.later += 0.5e-3 * n_prompt
        clock.most = max(clock.most, n_prompt)

    toy.before_forward, toy.most_overlapped = forward, 0
    monkeypatch.setattr(engine_module, "perf_counter", lambda: clock.now)
    engine = Engine(toy, chunk=400, max_step=0.05)
    short = engine.add(Session([1, 2], max_tokens=100))
    for _ in range(4):
        engine.step()
    long = engine.add(Session([i % 7 for i in range(600)], max_tokens=3))
    while not long.finished:
        engine.step()
    assert toy.n_behind > 8
    assert clock.longest <= 0.05
    assert clock.most >= 64
    finish(engine)
    assert long.output_ids == naive(toy, [i % 7 for i in range(600)], Sampling(), 3)
    assert short.output_ids == naive(toy, [1, 2], Sampling(), 100)


def test_on_a_gpu_the_start_learns_what_prompts_cost(costed, monkeypatch):
    toy, _ = costed
    toy.device, toy.warm = "cuda", lambda: None
    monkeypatch.setattr(warm_marker, "is_known", lambda _: True)
    engine = Engine(toy, chunk=400, max_step=0.05)
    assert engine.prompt_share.tokens(400, 1) == 16
    warm(engine, "a kind", lambda _: None)
    assert 60 <= engine.prompt_share.tokens(400, 1) <= 82  # nine tenths of their rate; 45 ms
    assert (engine.busy, toy.leaked) == (False, (0, 0, 0))


def test_alone_a_prompt_takes_whole_chunks(costed):
    toy, clock = costed
    engine = Engine(toy, chunk=400, max_step=0.05)
    session = engine.add(Session([1] * 1001, max_tokens=1))
    while not session.finished:
        engine.step()
    assert [n for _, n, _ in clock.steps] == [400, 400, 200, 0]


def test_the_limit_follows_the_cost_of_prompts(costed):
    toy, clock = costed
    engine = Engine(toy, chunk=400, max_step=0.05)
    engine.add(Session([1, 2], max_tokens=400))
    long = engine.add(Session([3] * 1900, max_tokens=1))
    for n, token in enumerate([0.5e-3, 2e-3, 0.25e-3]):
        clock.token = token
        for _ in range(6):
            engine.step()
        assert clock.steps[-1][2] <= 0.0501, n
        assert clock.steps[-1][2] > 0.03, n
    assert not long.finished


def test_times_of_few_tokens_do_not_count_for_many():
    limit = PromptShare(0.05, 1)
    limit.observe([SimpleNamespace(n_prefill=0)], 0.02)
    limit.observe([SimpleNamespace(n_prefill=0), SimpleNamespace(n_prefill=20)], 0.015)  # other sessions than before
    assert limit.tokens(512, 1) == 80


def test_prompts_make_progress_even_if_decoding_takes_all_the_time():
    limit = PromptShare(0.01, 1)
    limit.observe([SimpleNamespace(n_prefill=0)], 0.5)
    limit.observe([SimpleNamespace(n_prefill=0), SimpleNamespace(n_prefill=16)], 0.6)
    assert limit.tokens(512, 1) == 16
    assert limit.tokens(4, 1) == 4


def test_a_short_prompt_does_not_wait_for_long_ones():
    toy = Toy(N_VOCAB)
    engine = Engine(toy, chunk=64)
    long = [engine.add(Session([i] * 900, max_tokens=2)) for i in range(2)]
    short = engine.add(Session([5] * 60, max_tokens=2))
    progress = []
    while not short.finished:
        engine.step()
        progress.append([session.n_prefilled for session in long])
    assert len(progress) <= 5
    assert progress[1][0] >= 64  # the oldest has half of each chunk
    finish(engine)
    assert [len(session.output_ids) for session in long] == [2, 2]
    assert long[0].ended_at < long[1].ended_at
