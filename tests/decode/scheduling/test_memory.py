"""Sessions take pages as they grow, and the youngest gives way: each gets the tokens that it gets alone."""

import pytest
from ahead_toy import AheadToy
from crowd import Meddler, Pages, small_pages
from oracles import naive
from toy import State, Toy

from dflash.decode.drafters.adaptive import measuring
from dflash.decode.drafters.adaptive.drafter import Adaptive
from dflash.decode.drafters.first_of import FirstOf
from dflash.decode.drafting.draft import EMPTY
from dflash.decode.drafting.drafter import Drafter, Nothing, Strategy
from dflash.decode.engine import Engine
from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.errors import DeviceLost, EngineFailed, OutOfMemory, PoolExhausted
from dflash.generation.timings import Timings

PROMPT = [1, 2, 3]


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


def until_preempted(engine, session):
    while not session.n_preempted:
        assert not session.finished
        engine.step()


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
    until_preempted(engine, young)
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
    until_preempted(engine, young)
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


@pytest.mark.parametrize(("max_swap", "active"), [(0, 1), (1, 2), (2, 3), (None, 4)])
def test_pages_that_could_be_preempted_decide_how_many_start(pages, max_swap, active):
    """One page each at their start; the oldest is never preempted and does not count."""
    toy = Toy(pages=8, context=50)
    engine = Engine(toy, headroom=0, max_swap=max_swap)
    sessions = [engine.add(Session([*PROMPT, i])) for i in range(4)]
    most = 0
    while engine.busy:
        engine.step()
        held = [session.preempted_state.length for session in sessions if session.preempted_state is not None]
        most = max(most, sum(-(-length // 8) for length in held))
        if engine.n_preempted == 0:
            assert engine.active <= active
    assert (most > 0) == (active > 1)
    for session in sessions:
        assert session.output_ids == naive(toy, session.prompt_ids, Sampling(), 46)
    assert toy.leaked == (0, 0, 0)


def test_pages_that_sessions_share_count_for_each(pages):
    toy = Toy(pages=40, context=200)
    engine = Engine(toy, headroom=0, prefix_cache=PrefixCache(10**6, 100, min_gain=1), max_swap=9)
    shared = [i % 13 for i in range(32)]
    engine.add(Session(shared, max_tokens=1))
    finish(engine)
    sessions = [engine.add(Session([*shared, i], max_tokens=4)) for i in range(4)]
    engine.step()
    assert (engine.active, engine.waiting) == (2, 2)
    assert toy.pools.free_pages > 9
    finish(engine)
    assert [session.output_ids for session in sessions] == [naive(toy, each.prompt_ids, Sampling(), 4) for each in sessions]
    engine.close()


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


def set_aside(toy, engine, *, strategy=None, **settings):
    """Two sessions, of which the younger one is preempted."""
    old = engine.add(Session([*PROMPT, 0], max_tokens=27))
    young = engine.add(Session([*PROMPT, 1], max_tokens=27, strategy=strategy or Strategy(Nothing()), **settings))
    until_preempted(engine, young)
    return old, young


def test_an_engine_that_closes_releases_what_is_set_aside(pages):
    toy = Toy(pages=4, slots=2)
    engine = Engine(toy, headroom=0)
    sessions = set_aside(toy, engine)
    engine.close()
    assert [session.finish_reason for session in sessions] == ["cancelled"] * 2
    assert [session.preempted_state for session in sessions] == [None] * 2
    assert toy.leaked == (0, 0, 0)


def test_an_engine_that_fails_ends_what_is_set_aside(pages):
    toy = Toy(pages=4, slots=2)
    engine = Engine(toy, headroom=0)
    _, young = set_aside(toy, engine)

    def lose(spans):
        raise DeviceLost("planted")

    toy.before_forward = lose
    engine.step()
    assert isinstance(young.error, EngineFailed)
    assert (young.preempted_state, toy.leaked) == (None, (0, 0, 0))


@pytest.mark.parametrize("method", ["host_arrays", "restore_from_host"])
def test_a_copy_that_fails_ends_its_session_alone(pages, method, monkeypatch):
    def fail(*_):
        raise OutOfMemory("planted")

    monkeypatch.setattr(State, method, fail)
    toy = Toy(pages=4, slots=2)
    engine = Engine(toy, headroom=0)
    old, young = set_aside(toy, engine)
    finish(engine)
    assert (old.finish_reason, young.finish_reason) == ("length", "error")
    assert isinstance(young.error, OutOfMemory)
    assert toy.leaked == (0, 0, 0)


def test_a_drafter_continues_with_its_state(pages):
    """One whose snapshots stay on the device starts after the tokens so far; a third makes none at all."""
    toy = Toy(pages=4, slots=2)
    engine = Engine(toy, headroom=0)
    for drafter, first in ((Pages(toy.pools, {}), 0), (Pages(toy.pools, {}, tree=True), None), (Unsaved(), None)):
        old, young = set_aside(toy, engine, strategy=Strategy(drafter))
        length = young.preempted_state.length
        old.cancel()
        engine.step()
        assert young.drafter_state.first == (length if first is None else first)
        finish(engine)
        assert young.output_ids == naive(toy, young.prompt_ids, Sampling(), 27)


def test_each_part_of_a_drafter_continues_with_its_state(pages, monkeypatch):
    monkeypatch.setattr(measuring, "REPEATS", 1)
    for kind in (FirstOf, Adaptive):
        toy = Toy(pages=40, slots=2, rows=8)
        drafter = kind(Pages(toy.pools, {}), Unsaved())
        drafter.prepare(toy)
        toy.pools.take_pages(36)
        engine = Engine(toy, headroom=0)
        old, young = set_aside(toy, engine, strategy=Strategy(drafter))
        length = young.preempted_state.length
        old.cancel()
        engine.step()
        assert [part.first for part in young.drafter_state.parts] == [0, length]
        finish(engine)


def test_a_recorder_sees_one_start(pages):
    toy, recorder = Toy(pages=4, slots=2), Recording()
    engine = Engine(toy, headroom=0)
    _, young = set_aside(toy, engine, recorder=recorder)
    finish(engine)
    assert recorder.n_started == 1
    assert [token for step in recorder.steps for token in step.tokens] == recorder.tokens == young.output_ids


def test_pages_of_a_prefix_are_shared_again(pages):
    """Without that, a session whose caller holds the prefix would need more pages than there are."""
    toy = Toy(pages=7, slots=2)
    engine = Engine(toy, headroom=0)
    first = engine.add(Session([1] * 32, max_tokens=4))
    for _ in range(2):
        engine.step()
    prefix = first.snapshot()
    first.cancel()
    for closes in (False, True):
        old = engine.add(Session(PROMPT, max_tokens=15))
        engine.step()
        young = engine.add(Session([*prefix.token_ids, 2], max_tokens=16, prefix=prefix))
        until_preempted(engine, young)
        assert toy.pools.free_pages == 1
        if closes:
            prefix.close()
        finish(engine)
        assert (old.n_tokens, young.output_ids) == (15, naive(toy, young.prompt_ids, Sampling(), 16))
    assert toy.leaked == (0, 0, 0)


def test_a_session_that_snapshots_of_callers_keep_from_its_end_is_refused_at_its_start(pages):
    toy = Toy(pages=6, slots=2)
    engine = Engine(toy, prefix_cache=PrefixCache(10**6, 100, min_gain=1))
    first = engine.add(Session([1] * 24, max_tokens=4))
    for _ in range(2):
        engine.step()
    held = first.snapshot().state
    finish(engine)
    late = engine.add(Session(PROMPT, max_tokens=30))
    finish(engine)
    assert isinstance(late.error, PoolExhausted)
    assert late.n_tokens == 0
    fitting = engine.add(Session(PROMPT, max_tokens=14))
    finish(engine)
    assert fitting.finish_reason == "length"
    held.close()
    engine.close()
    assert toy.leaked == (0, 0, 0)


class Unsaved(Drafter):
    """Its states make no snapshots."""

    def start(self, session, model, snapshot=None):
        return Unsaving(session.n_prefilled)


class Unsaving:
    capture = ()

    def __init__(self, first):
        self.first = first

    def propose(self, max_draft):
        return EMPTY

    def observe(self, step, out, rows):
        pass

    def close(self):
        pass


class Recording:
    def __init__(self):
        self.n_started, self.tokens, self.steps = 0, [], []

    def started(self, session):
        self.n_started += 1

    def picked(self, row, logits, token):
        self.tokens.append(token)

    def emitted(self, step):
        self.steps.append(step)
