"""Sessions take pages as they grow, and the youngest gives way: each gets the tokens that it gets alone."""

from types import SimpleNamespace

import numpy as np
import pytest
from ahead_toy import AheadToy
from crowd import SMALL, Meddler, Pages, small_pages
from oracles import naive
from toy import Toy

from dflash.decode.drafters.first_of import FirstOf
from dflash.decode.drafting.drafter import Nothing, Strategy
from dflash.decode.engine import Engine
from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.errors import PoolExhausted
from dflash.generation.timings import Timings

PROMPT = [1, 2, 3]
END = 12


@pytest.fixture
def pages():
    with small_pages():
        yield


def finish(engine, most=5000):
    for _ in range(most):
        if not engine.busy:
            return
        engine.step()
    raise AssertionError("no end in sight")


def test_sessions_without_a_limit_share_the_pages(pages):
    toy = Toy(pages=8, context=50)
    engine = Engine(toy)
    sessions = [engine.add(Session([*PROMPT, i])) for i in range(4)]
    engine.step()
    assert engine.active == 4
    assert toy.pools.free_pages == 4
    finish(engine)
    for session in sessions:
        assert (session.finish_reason, session.n_tokens) == ("length", 46)
        assert session.output_ids == naive(toy, session.prompt_ids, Sampling(), 46)
    # the oldest is never preempted, and ends before any other
    assert sessions[0].n_preempted == 0
    assert engine.n_preempted == sum(session.n_preempted for session in sessions) > 0
    assert sorted(sessions, key=lambda session: session.ended_at) == sessions
    assert toy.leaked == (0, 0, 0)


def test_a_session_that_can_never_fit_is_refused_at_once(pages):
    engine = Engine(Toy(pages=4))
    with pytest.raises(PoolExhausted, match="never fit 32"):
        engine.add(Session(PROMPT, max_tokens=31))
    engine.add(Session(PROMPT, max_tokens=30))
    finish(engine)


def test_a_preempted_session_is_resumed_before_others_start(pages):
    toy = Toy(pages=4, slots=2)
    engine = Engine(toy, headroom=0)
    old, young = (engine.add(Session([*PROMPT, i], max_tokens=27)) for i in range(2))
    while not young.n_preempted:
        engine.step()
    assert (engine.active, engine.waiting, young.state, young.drafter_state) == (1, 1, None, None)
    assert young.preempted_state.length == len(young.token_ids) - 1
    late = [engine.add(Session(PROMPT, max_tokens=1)) for _ in range(40)]
    finish(engine)
    assert min(session.started_at for session in late) > old.ended_at
    assert (old.finish_reason, young.finish_reason) == ("length", "length")
    assert [step.prefilled for step in young.steps if step.prefilled] == [3]
    assert (young.n_prompt, young.n_cached, young.n_tokens, young.preempted_state) == (4, 0, 27, None)
    assert Timings.of(young).prompt_rate > 0
    assert young.started_at < young.first_token_at < old.ended_at < young.ended_at


def test_a_preempted_session_may_be_cancelled(pages):
    toy = Toy(pages=4, slots=2)
    engine = Engine(toy, headroom=0)
    _, young = (engine.add(Session([*PROMPT, i], max_tokens=27)) for i in range(2))
    while not young.n_preempted:
        engine.step()
    assert engine.waiting == 1
    young.cancel()
    assert [event.step.finish for event in engine.step() if event.session is young] == ["cancelled"]
    assert engine.waiting == 0
    engine.close()
    assert toy.leaked == (0, 0, 0)


@pytest.mark.parametrize(("headroom", "active", "preempts"), [(0, 4, True), (1, 3, True), (None, 2, False)])
def test_headroom_decides_how_many_start(pages, headroom, active, preempts):
    engine = Engine(Toy(pages=6), headroom=headroom)
    for i in range(4):
        engine.add(Session([i], max_tokens=24))
    engine.step()
    assert engine.active == active
    finish(engine)
    assert (engine.n_preempted > 0) == preempts


def test_a_short_session_needs_no_headroom(pages):
    engine = Engine(Toy(pages=4))
    for i in range(4):
        engine.add(Session([i], max_tokens=8))
    engine.step()
    assert engine.active == 4
    engine.close()


def test_the_prefix_cache_gives_way_first(pages):
    toy = Toy(pages=8)
    engine = Engine(toy, prefix_cache=PrefixCache(10**6, 100, min_gain=1))
    for i in range(4):
        engine.add(Session([i, *range(12)], max_tokens=2))
        finish(engine)
    assert toy.pools.free_pages < 4
    sessions = [engine.add(Session([*PROMPT, i], max_tokens=29, boundaries=(2,))) for i in range(2)]
    finish(engine)
    assert [session.finish_reason for session in sessions] == ["length"] * 2
    assert engine.n_preempted == 0
    assert engine.prefix_cache.stats.evictions > 0
    engine.close()
    assert toy.leaked == (0, 0, 0)


def test_a_saved_prompt_is_dropped_before_a_session_is_preempted(pages):
    toy = Toy(pages=4, slots=2)
    engine = Engine(toy)
    session = engine.add(Session(PROMPT, max_tokens=30, strategy=Strategy(Nothing()) | Meddler("restart", 28)))
    for _ in range(2):
        engine.step()
    assert session.prompt_snapshot is not None
    finish(engine)
    assert (session.finish_reason, session.n_preempted) == ("length", 0)
    assert session.output_ids == naive(toy, PROMPT, Sampling(), 30)
    assert toy.leaked == (0, 0, 0)


def test_a_session_that_can_not_restart_now_waits(pages):
    toy = Toy(pages=5, slots=3)
    engine = Engine(toy, headroom=0, prefix_cache=PrefixCache(10**6, 100, min_gain=1))
    prompt = [1] * 25
    engine.add(Session(prompt, max_tokens=1))
    finish(engine)
    old = engine.add(Session(prompt, max_tokens=8))
    young = engine.add(Session(prompt, max_tokens=9, strategy=Strategy(Nothing()) | Meddler("restart", 3)))
    engine.step()
    assert (engine.active, toy.pools.free_pages) == (2, 0)
    engine.prefix_cache.clear()  # both still share three pages of the prompt
    engine.step()
    assert not young.n_preempted
    engine.step()
    assert (young.n_preempted, young.state, engine.waiting) == (1, None, 1)
    finish(engine)
    for session in (old, young):
        assert session.output_ids == naive(toy, prompt, Sampling(), session.n_tokens)
        assert session.finish_reason == "length"
    engine.close()
    assert toy.leaked == (0, 0, 0)


def test_a_step_is_not_launched_ahead_without_pages(pages):
    toy = AheadToy(pages=5, context=40)
    engine = Engine(toy, headroom=0)
    sessions = [engine.add(Session([i], max_tokens=33)) for i in range(3)]
    finish(engine)
    for session in sessions:
        assert session.output_ids == naive(toy, session.prompt_ids, Sampling(), 33)
    assert engine.n_preempted > 0
    assert toy.ahead > 30
    assert toy.leaked == (0, 0, 0)


def test_memory_that_others_hold_ends_the_last_session_with_an_error(pages):
    toy = Toy(pages=4)
    engine = Engine(toy)
    session = engine.add(Session(PROMPT, max_tokens=30))
    engine.step()
    taken = toy.pools.take_pages(3)
    finish(engine)
    assert isinstance(session.error, PoolExhausted)
    toy.pools.return_pages(taken)
    assert toy.leaked == (0, 0, 0)


def request(rng, drafters, texts, *, greedy):
    """Random arguments of a session, which may begin as others did."""
    base = texts[rng.integers(len(texts))]
    prompt = [*base[: rng.integers(len(base) + 1)], *rng.integers(0, END, rng.integers(1, 6)).tolist()][-20:]
    kind = ["hold", "restart", "inject", None, None][rng.integers(5)] if not greedy or rng.random() < 0.2 else None
    strategy = Strategy(drafters[rng.integers(len(drafters))])
    sampling = {"seed": int(rng.integers(9)), "logprobs": 1 if rng.random() < 0.2 and not greedy else None}
    if not greedy and rng.random() < 0.5:
        sampling |= {"temperature": 0.8, "repetition_penalty": 1.2 if rng.random() < 0.3 else 1.0}
    return SimpleNamespace(
        prompt=prompt,
        sampling=Sampling(**sampling),
        strategy=strategy | Meddler(kind, int(rng.integers(1, 12))) if kind else strategy,
        max_tokens=None if rng.random() < 0.4 else int(rng.integers(1, 50)),
        eos=(END,) if rng.random() < 0.2 else (),
        boundaries=rng.integers(0, len(prompt) + 2, rng.integers(0, 3)).tolist(),
        use_prefix_cache=bool(rng.random() < 0.9),
    )


def session_of(asked, seen):
    return Session(**vars(asked), observer=lambda _, tokens: seen.extend(tokens))


def alone(asked, capacity, context):
    """Tokens of a request that has a model for itself."""
    seen, toy = [], Toy(pages=64, context=min(context, capacity + 1))
    session = session_of(
        SimpleNamespace(**vars(asked) | {"strategy": Strategy(Nothing(), None, asked.strategy.recoveries)}), seen
    )
    list(Engine(toy).stream(session))
    assert seen == session.output_ids
    return session.output_ids, session.finish_reason


@pytest.mark.parametrize("group", range(4))
def test_whatever_comes_in_between(pages, group):
    """A hundred random crowds: cancels, failures, drafters, recoveries, with and without a prefix cache."""
    n_preempted = sum(crowd(100 * group + i) for i in range(100))
    assert n_preempted > 40


def crowd(number):
    """Let one crowd run to its end; return the number of preemptions."""
    rng = np.random.default_rng(number)
    ahead, n_pages, slots, context = bool(rng.random() < 0.3), int(rng.integers(3, 9)), int(rng.integers(2, 6)), 60
    sizes = {"pages": n_pages, "slots": slots, "context": context, "rows": int(rng.integers(24, 80))}
    toy = AheadToy(**sizes) if ahead else Toy(**sizes)
    cache = PrefixCache(int(rng.choice([100, 800, 10**6])), 100, min_gain=1) if rng.random() < 0.5 else None
    headroom = [0, 0, 0, 1, None][rng.integers(5)]
    engine = Engine(toy, chunk=int(rng.integers(2, 32)), prefix_cache=cache, headroom=headroom)
    known, texts = {}, [[]]
    own = [] if ahead else [Pages(toy.pools, known), Pages(toy.pools, known, tree=True)]
    drafters = [Nothing(), *own, FirstOf(*own)] if own else [Nothing()]
    failing, running, n_steps, n_failures = [False], [], 0, 0

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
            want = alone(asked, SMALL * n_pages, context)
            known[tuple(asked.prompt)] = [*asked.prompt, *want[0]]
            texts.append(known[tuple(asked.prompt)])
            running.append((session, seen, want))
        if disturbed and running and rng.random() < 0.03:
            running[rng.integers(len(running))][0].cancel()
        failing[0] = disturbed and n_failures < 2 and rng.random() < 0.01
        n_failures += failing[0]
        engine.step()
        n_steps += 1
        assert n_steps < 4000, "no end in sight"
    for session, seen, (tokens, reason) in running:
        got = session.output_ids
        if session.finish_reason in ("cancelled", "error"):
            assert disturbed, (number, session, session.error)
            assert session.error is None or "planted" in str(session.error), (number, session.error)
            assert seen == tokens[: len(seen)]
            continue
        assert (got, session.finish_reason) == (tokens, reason), number
        assert seen == got == [token for step in session.steps for token in step.tokens]
        assert not session.wants_logprobs or [each.token for each in session.logprobs] == got
        assert [step.finish for step in session.steps if step.finish] == [reason]
        assert session.n_cached < session.n_prompt
    engine.close()
    assert toy.leaked == (0, 0, 0)
    for drafter in own:
        assert (drafter.pools.free_pages, drafter.pools.free_slots) == (drafter.pools.pages, slots)
    assert engine.n_preempted == sum(session.n_preempted for session, _, _ in running)
    return engine.n_preempted
