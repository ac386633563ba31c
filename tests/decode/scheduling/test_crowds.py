"""Random crowds of sessions in a few pages: each gets the tokens that it gets alone."""

import itertools
import os
from types import SimpleNamespace

import numpy as np
import pytest
from ahead_toy import AheadToy
from crowd import SMALL, Meddler, Pages, small_pages
from toy import Toy
from word_grammar import END, WordGrammar

from dflash.decode.drafters.first_of import FirstOf
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.drafter import Nothing, Strategy
from dflash.decode.engine import Engine
from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.sampling.params import Sampling
from dflash.decode.scheduling import reread
from dflash.decode.session import Session
from dflash.errors import PoolExhausted

N_CROWDS = int(os.environ.get("DFLASH_CROWDS", "120"))
"""Crowds in each of four tests; thousands of them take minutes."""


@pytest.mark.parametrize("group", range(4))
def test_whatever_comes_in_between(group, monkeypatch):
    """Cancels, failures, drafters, recoveries, grammars, with and without a prefix cache, answers that are read again."""
    monkeypatch.setattr(reread, "DELAY", 0.0)
    monkeypatch.setattr(reread, "perf_counter", itertools.count().__next__)
    with small_pages():
        n_preempted = sum(crowd(N_CROWDS * group + i) for i in range(N_CROWDS))
    assert n_preempted > N_CROWDS / 2


def request(rng, drafters, texts, *, greedy):
    """Random arguments of a session, which may begin as others did."""
    base = texts[rng.integers(len(texts))]
    prompt = [*base[: rng.integers(len(base) + 1)], *rng.integers(1, 12, rng.integers(1, 6)).tolist()][-20:]
    plain = greedy and rng.random() < 0.8
    kind = ["hold", "restart", "inject", None, None][rng.integers(5)] if not plain else None
    strategy = Strategy(drafters[rng.integers(len(drafters))])
    sampling = {"seed": int(rng.integers(9)), "logprobs": 1 if rng.random() < 0.2 and not plain else None}
    if not greedy and rng.random() < 0.5:
        sampling["temperature"] = 0.8
    if not plain and rng.random() < 0.2:
        sampling |= {"repetition_penalty": 1.2, "frequency_penalty": 0.5}
    return SimpleNamespace(
        prompt=prompt,
        sampling=Sampling(**sampling),
        strategy=strategy | Meddler(kind, int(rng.integers(1, 12))) if kind else strategy,
        max_tokens=None if rng.random() < 0.4 else int(rng.integers(1, 50)),
        eos=(END,) if rng.random() < 0.2 else (),
        boundaries=rng.integers(0, len(prompt) + 2, rng.integers(0, 3)).tolist(),
        use_prefix_cache=bool(rng.random() < 0.9),
        stop_ids=rng.integers(1, 12, rng.integers(2)).tolist() if rng.random() < 0.2 else None,
        prompt_logprobs=int(rng.integers(3)) if rng.random() < 0.2 and not plain else None,
        grammar=None if plain or rng.random() < 0.8 else WordGrammar(n_vocab=13),
    )


def session_of(asked, seen):
    settings = vars(asked) | ({"eos": (END,), "stop_ids": None} if asked.grammar is not None else {})
    return Session(**settings, observer=lambda _, tokens: seen.extend(tokens))


def alone(asked, toy):
    """Tokens, reason and both kinds of log-probabilities of a request that has a model for itself, in plain decoding."""
    seen = []
    plain = Strategy(Nothing(), None, asked.strategy.recoveries)
    session = session_of(SimpleNamespace(**vars(asked) | {"strategy": plain}), seen)
    list(Engine(toy).stream(session))
    assert seen == session.output_ids
    return session.output_ids, session.finish_reason, session.logprobs, session.scored_prompt


def crowd(number):
    """Let one crowd run to its end; return the number of preemptions."""
    rng = np.random.default_rng(number)
    ahead, n_pages, slots, context = bool(rng.random() < 0.3), int(rng.integers(3, 9)), int(rng.integers(2, 6)), 60
    cache = PrefixCache(int(rng.choice([100, 800, 10**6])), 100, min_gain=1) if rng.random() < 0.5 else None
    rereads = cache is not None and not ahead and rng.random() < 0.5
    rounds = cache is None or rereads  # else a prompt may begin with the output of another session
    sizes = {"pages": n_pages, "slots": slots, "context": context, "rows": int(rng.integers(24, 80)), "rounds": rounds}
    toy = AheadToy(**sizes) if ahead else Toy(**sizes)
    toy.max_state_copies = number % 3
    if rereads:
        toy.chunk_alignment, cache.reread = 4, True
    headroom = [0, 0, 0, 1, None][rng.integers(5)]
    engine = Engine(toy, chunk=int(rng.integers(2, 32)), prefix_cache=cache, headroom=headroom)
    known, texts = {}, [[]]
    own = [] if ahead else [Pages(toy.pools, known), Pages(toy.pools, known, tree=True)]
    drafters = [Nothing(), *own, FirstOf(*own), PromptLookup()] if own else [Nothing()]
    failing, running, events, n_steps, n_failures = [False], [], [], 0, 0

    def before(spans):
        if failing[0]:
            raise RuntimeError("planted")

    toy.before_forward = before
    disturbed = rng.random() < 0.4
    n_sessions = int(rng.integers(2, 7))
    while engine.busy or len(running) < n_sessions:
        if len(running) < n_sessions and rng.random() < 0.5:
            asked, seen = request(rng, drafters, texts, greedy=ahead), []
            session = session_of(asked, seen)
            try:
                engine.add(session)
            except PoolExhausted:
                assert len(asked.prompt) + (asked.max_tokens or 1) - 1 > SMALL * n_pages
                n_sessions -= 1
                continue
            want = alone(asked, Toy(pages=64, context=min(context, SMALL * n_pages + 1), rounds=rounds))
            known[tuple(asked.prompt)] = [*asked.prompt, *want[0]]
            texts.append(known[tuple(asked.prompt)])
            running.append((session, seen, want))
        if disturbed and running and rng.random() < 0.03:
            running[rng.integers(len(running))][0].cancel()
        failing[0] = disturbed and n_failures < 2 and rng.random() < 0.01
        n_failures += failing[0]
        events += engine.step()
        check_order([session for session, *_ in running])
        n_steps += 1
        assert n_steps < 4000, "no end in sight"
    for session, seen, (tokens, reason, *logprobs) in running:
        assert [event.step for event in events if event.session is session] == session.steps
        if session.finish_reason in ("cancelled", "error"):
            assert disturbed, (number, session, session.error)
            assert session.error is None or "planted" in str(session.error), (number, session.error)
            assert seen == tokens[: len(seen)]
            continue
        assert (session.output_ids, session.finish_reason) == (tokens, reason), number
        assert [session.logprobs, session.scored_prompt] == logprobs, number
        assert seen == tokens == [token for step in session.steps for token in step.tokens]
        assert [step.finish for step in session.steps if step.finish] == [reason]
        assert session.n_cached < session.n_prompt
        assert session.preempted_state is None
    engine.close()
    assert toy.leaked == (0, 0, 0)
    for drafter in own:
        assert (drafter.pools.free_pages, drafter.pools.free_slots) == (drafter.pools.pages, slots)
    assert engine.n_preempted == sum(session.n_preempted for session, *_ in running)
    return engine.n_preempted


def check_order(sessions):
    """A session waits only for older ones, unless it could not restart."""
    started = [session for session in sessions if session.started_at is not None and not session.finished]
    active = [session for session in started if session.state is not None]
    for session in started:
        if session.preempted_state is not None:
            assert session.state is None
            assert all(other.started_at < session.started_at for other in active)
