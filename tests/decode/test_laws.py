"""No draft, no company and no chunking changes a text."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import Oracle, naive
from toy import Toy

from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.model.batch import Span

N = 40
SAMPLINGS = [
    Sampling(),
    Sampling(repetition_penalty=1.5, frequency_penalty=0.3),
    Sampling(temperature=0.7, seed=1),
    Sampling(temperature=1.0, top_p=0.9, top_k=8, min_p=0.02, seed=2),
    Sampling(temperature=1.0, presence_penalty=0.6, logit_bias={4: 2.0, 5: -50}, seed=-3),
]
IDS = ["greedy", "greedy, penalties", "T 0.7", "T 1, top-p top-k min-p", "T 1, penalties, bias"]
PROMPT = [7, 7, 2, 11]


def all_of(engine, sessions):
    list(engine.run(sessions))
    return [session.output_ids for session in sessions]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=IDS)
def test_plain_decoding_is_its_definition(sampling):
    toy = Toy()
    session = Session(PROMPT, sampling=sampling, max_tokens=N)
    assert all_of(Engine(toy), [session]) == [naive(toy, PROMPT, sampling, N, seed=sampling.seed)]
    assert session.finish_reason == "length"
    assert len(session.steps) == 1 + N
    assert toy.leaked == (0, 0, 0)


@pytest.mark.parametrize("kind", ["right", "wrong", "chain", "tree"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=IDS)
def test_no_draft_changes_the_text(sampling, kind):
    toy = Toy()
    truth = naive(toy, PROMPT, sampling, N, seed=sampling.seed)
    for size in (1, 5, 24):
        strategy = Strategy(Oracle(((*PROMPT, *truth),), kind, size=size))
        session = Session(PROMPT, sampling=sampling, max_tokens=N, strategy=strategy)
        assert all_of(Engine(toy, chunk=2), [session]) == [truth]
        n_steps = sum(bool(step.tokens) for step in session.steps)
        assert n_steps + session.n_accepted >= N
        assert (session.n_accepted == 0) == (kind == "wrong")
        assert kind != "right" or session.n_accepted == session.n_drafted
        for step in session.steps:
            assert step.accepted <= min(step.drafted, len(step.tokens)) <= step.accepted + 1
    assert toy.leaked == (0, 0, 0)


def test_a_draft_beyond_the_room_is_cut():
    toy = Toy(rows=10)
    truth = naive(toy, PROMPT, Sampling(), N)
    drafter = Oracle(((*PROMPT, *truth),), "right", size=100, greedy_for_room=True)
    session = Session(PROMPT, max_tokens=N, strategy=Strategy(drafter))
    assert all_of(Engine(toy), [session]) == [truth]
    assert max(step.drafted for step in session.steps) == 9
    assert [sum(rows for rows, _ in spans) for spans in toy.forwards][-1] == 1 + session.steps[-1].drafted


@pytest.mark.parametrize("pending", [2, 8])
def test_a_draft_beyond_the_pending_rows_is_cut(pending):
    """Forced rows of a grammar or recovery and long drafts take no more rows than are stored; prompts may."""
    toy = Toy(pending=pending)
    prompt = [i % 13 for i in range(30)]
    truth = naive(toy, prompt, Sampling(), N)
    sessions = [
        Session(prompt, max_tokens=N, strategy=Strategy(Oracle(((*prompt, *truth),), kind, size=20)))
        for kind in ("right", "tree", "chain")
    ]
    assert all_of(Engine(toy), sessions) == [truth] * 3
    assert max(step.drafted for session in sessions for step in session.steps) == pending - 1
    assert max(rows for spans in toy.forwards for rows, _ in spans) > pending


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_sessions_get_what_each_gets_alone(number):
    rng = np.random.default_rng(number)
    toy = Toy(rows=int(rng.integers(8, 64)), slots=int(rng.integers(1, 6)))
    engine = Engine(toy, chunk=int(rng.integers(1, 20)), max_active=int(rng.integers(1, 8)))
    sessions, alone = [], []
    for _ in range(int(rng.integers(1, 8))):
        prompt = rng.integers(0, 13, rng.integers(1, 30)).tolist()
        sampling = SAMPLINGS[rng.integers(len(SAMPLINGS))]
        n, eos = int(rng.integers(0, 25)), rng.integers(0, 13, rng.integers(2)).tolist()
        truth = naive(toy, prompt, sampling, n, seed=sampling.seed, eos=eos)
        oracle = Oracle(((*prompt, *truth),), rng.choice(["chain", "tree"]), size=int(rng.integers(1, 20)))
        strategy = Plain() if rng.random() < 0.4 else Strategy(oracle)
        sessions.append(Session(prompt, sampling=sampling, strategy=strategy, max_tokens=n, eos=eos))
        alone.append(truth)
    late = sessions[len(sessions) // 2 :]
    for session in sessions[: len(sessions) // 2]:
        engine.add(session)
    while engine.busy or late:
        engine.step()
        if late and rng.random() < 0.3:
            engine.add(late.pop())
    assert [session.output_ids for session in sessions] == alone
    for session in sessions:
        ended = session.output_ids and session.output_ids[-1] in session.eos
        assert session.finish_reason == ("stop" if ended else "length")
        assert session.stop_token == (session.output_ids[-1] if ended else None)
        assert [token for step in session.steps for token in step.tokens] == session.output_ids
        assert sum(step.prefilled for step in session.steps) == (session.n_prompt - 1 if session.max_tokens else 0)
        assert [step.finish for step in session.steps] == [None] * (len(session.steps) - 1) + [session.finish_reason]
    assert toy.leaked == (0, 0, 0)


def test_one_seed_one_text():
    toy, texts = Toy(50), []
    for seed in (None, None, 5, 5):
        session = Session([1], sampling=Sampling(temperature=1.0, seed=seed), max_tokens=30)
        texts += all_of(Engine(toy), [session])
        again = Session([1], sampling=Sampling(temperature=1.0, seed=session.seed), max_tokens=30)
        assert all_of(Engine(toy), [again]) == texts[-1:]
    assert texts[0] != texts[1] != texts[2] == texts[3]


def test_from_a_snapshot_of_any_part_of_the_prompt():
    toy = Toy()
    prompt = list(range(12))
    truth = naive(toy, prompt, Sampling(), 10)
    for length in (0, 1, 5, 11):
        state = toy.state()
        state.reserve(length)
        for token in prompt[:length]:
            toy.forward([Span.chain(state, [token], prefill=True)])
        with_prefix = state.snapshot()
        state.close()
        session = Session(prompt, max_tokens=10, prefix=with_prefix)
        assert all_of(Engine(toy), [session]) == [truth]
        assert sum(step.prefilled for step in session.steps) == 11 - length
        assert toy.leaked == (length > 0, 0, 1)
        with_prefix.close()
    assert toy.leaked == (0, 0, 0)
