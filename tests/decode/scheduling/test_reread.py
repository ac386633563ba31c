"""Answers that are prefilled again, where prefilled tokens leave other bits than decoded ones."""

import pytest
from hang_guard import wait_until
from toy import Toy

from dflash.decode.engine import Engine
from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.scheduling import reread
from dflash.decode.session import Session
from dflash.generation.engine_thread import EngineThread

ALIGNMENT = 4
PROMPT = [1, 2, 3, 4, 5, 6]


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock that stands still; requests may follow at once."""
    now = [50.0]
    monkeypatch.setattr(reread, "perf_counter", lambda: now[0])
    monkeypatch.setattr(reread, "DELAY", 0.0)
    return now


@pytest.fixture
def toy():
    toy = Toy(rounds=True)
    toy.chunk_alignment = ALIGNMENT
    return toy


def engine_of(toy, *, exact=True, reread=True, **settings):
    return Engine(toy, prefix_cache=PrefixCache(10**6, 1, min_gain=1, exact=exact, reread=reread), **settings)


def answer(engine, prompt=PROMPT, n=11, **settings):
    """Run a session to its end, but no reread."""
    session = Session(prompt, max_tokens=n, **settings)
    list(engine.stream(session))
    assert session.error is None
    return session


def idle(engine):
    """Step until there is nothing left to do; return the numbers of steps and of their events."""
    steps = events = 0
    while engine.busy:
        events += len(engine.step())
        steps += 1
    return steps, events


def next_prompt(session):
    return [*session.token_ids, 7, 8]


def test_the_next_turn_begins_after_the_answer_with_the_bits_of_a_cold_start(toy):
    engine, cold = engine_of(toy), Engine(toy)
    session = answer(engine)
    for _ in range(3):
        assert idle(engine)[1] == 0, "a reread has no events"
        end = (len(session.token_ids) - 1) // ALIGNMENT * ALIGNMENT
        session = answer(engine, next_prompt(session), 9)
        assert session.n_cached == end
        assert session.output_ids == answer(cold, session.prompt_ids, 9).output_ids
    stats = engine.prefix_cache.stats
    assert (stats.queries, stats.hits) == (4, 3)
    assert stats.reread_tokens > 0
    idle(engine)
    engine.close()
    assert toy.leaked == (0, 0, 0)


@pytest.mark.parametrize(
    ("settings", "request_settings"),
    [({"exact": False}, {}), ({"reread": False}, {}), ({}, {"use_prefix_cache": False}), ({}, {"prompt_logprobs": 0})],
)
def test_nothing_is_read_again_where_it_has_no_use(toy, settings, request_settings):
    engine = engine_of(toy, **settings)
    answer(engine, **request_settings)
    assert not engine.busy


def test_states_of_answers_are_exact_without_an_alignment():
    engine = engine_of(Toy())
    session = answer(engine)
    assert not engine.busy
    assert answer(engine, next_prompt(session)).n_cached == len(session.token_ids) - 1


def test_a_request_starts_in_the_step_in_which_it_arrives_and_the_rest_follows(toy):
    engine = engine_of(toy, chunk=ALIGNMENT, max_active=1)
    session = answer(engine, n=40)
    for _ in range(3):
        engine.step()
    assert (engine.active, engine.waiting) == (0, 0)
    n_read = engine.prefix_cache.stats.reread_tokens
    assert 0 < n_read < 36
    other = engine.add(Session([9] * 9, max_tokens=2))
    engine.step()
    assert (other.n_prefilled, engine.active) == (ALIGNMENT, 1)
    idle(engine)
    assert other.finish_reason == "length"
    last = answer(engine, next_prompt(session))
    assert last.n_cached == (len(session.token_ids) - 1) // ALIGNMENT * ALIGNMENT
    assert engine.prefix_cache.stats.reread_tokens == last.n_cached - ALIGNMENT, "a token was read again twice"


def test_a_next_turn_that_comes_at_once_begins_after_what_was_read_and_ends_the_rest(toy):
    engine = engine_of(toy, chunk=ALIGNMENT)
    session = answer(engine, n=40)
    for _ in range(3):
        engine.step()
    n_read = engine.prefix_cache.stats.reread_tokens
    follower = answer(engine, next_prompt(session), 1)
    assert follower.n_cached == ALIGNMENT + n_read
    idle(engine)
    assert engine.prefix_cache.stats.reread_tokens == n_read + ALIGNMENT, "its own answer is the only other one"


def test_prompts_of_requests_come_before_answers(toy):
    engine = engine_of(toy, chunk=ALIGNMENT)
    answer(engine)
    other = engine.add(Session([9] * 41, max_tokens=1))
    while other.n_prefilled < other.n_prompt - 1:
        engine.step()
    assert engine.prefix_cache.stats.reread_tokens == 0
    assert idle(engine)[0] > 0
    assert engine.prefix_cache.stats.reread_tokens > 0


def test_a_reread_gives_its_memory_to_requests():
    toy = Toy(rounds=True, pages=3, context=700)
    toy.chunk_alignment = ALIGNMENT
    engine = engine_of(toy, headroom=0)
    long = answer(engine, [1] * 250, 200)
    engine.step()
    request = answer(engine, [2] * 500, 100)
    assert request.finish_reason == "length"
    idle(engine)
    engine.close()
    assert long.error is None
    assert toy.leaked == (0, 0, 0)


def test_a_reread_that_fails_harms_nobody(toy, caplog):
    engine = engine_of(toy)
    answer(engine)
    toy.before_forward = lambda spans: 1 / 0
    idle(engine)
    assert "could not be prefilled again" in caplog.text
    toy.before_forward = lambda spans: None
    assert answer(engine, [5, 5, 5]).finish_reason == "length"
    assert engine.n_preempted == 0


def test_an_answer_whose_prompt_is_saved_no_more_is_not_read_again(toy):
    engine = engine_of(toy)
    session = answer(engine)
    while engine.prefix_cache.evict_oldest():
        pass
    idle(engine)
    assert engine.prefix_cache.stats.reread_tokens == 0
    assert answer(engine, next_prompt(session)).output_ids == answer(Engine(toy), next_prompt(session)).output_ids
    engine.close()
    assert toy.leaked == (0, 0, 0)


def test_an_answer_waits_while_another_session_runs(toy):
    engine = engine_of(toy, chunk=ALIGNMENT)
    other = engine.add(Session([9] * 9, max_tokens=60))
    first = engine.add(Session(PROMPT, max_tokens=9))
    while not other.finished:
        assert engine.prefix_cache.stats.reread_tokens == 0
        engine.step()
    assert first.finished
    idle(engine)
    assert engine.prefix_cache.stats.reread_tokens > 8
    assert answer(engine, next_prompt(first)).n_cached == 12


def test_beside_others_the_next_turn_has_the_bits_of_a_cold_start_and_so_have_they(toy, clock):
    """A first answer waits for an idle device: nothing tells that it goes on. The later ones do not."""
    engine, cold = engine_of(toy), Engine(toy)
    other = engine.add(Session([9] * 9, max_tokens=150))
    session, ends = engine.add(Session(PROMPT, max_tokens=11)), [4]
    for _ in range(4):
        while not session.finished:
            engine.step()
        assert session.n_cached == ends[-1] or len(ends) == 1
        assert session.output_ids == answer(cold, session.prompt_ids, 11).output_ids
        for _ in range(3):
            clock[0] += 10.0  # rereads have a share of the time
            engine.step()
        ends.append((len(session.token_ids if len(ends) > 1 else PROMPT) - 1) // ALIGNMENT * ALIGNMENT)
        session = engine.add(Session(next_prompt(session), max_tokens=11))
    assert not other.finished
    idle(engine)
    assert other.output_ids == answer(cold, [9] * 9, 150).output_ids
    assert engine.prefix_cache.stats.reread_hits == 3
    engine.close()
    assert toy.leaked == (0, 0, 0)


def test_nothing_is_read_again_at_once_after_a_request(toy, clock, monkeypatch):
    """A client that sends the next one at once would wait for it."""
    monkeypatch.setattr(reread, "DELAY", 0.1)
    engine = engine_of(toy)
    session = answer(engine)
    assert not engine.busy
    assert engine.rereads.seconds_left == pytest.approx(0.1)
    clock[0] += 0.05
    assert not engine.busy
    clock[0] += 0.06
    assert engine.busy
    idle(engine)
    assert engine.rereads.seconds_left is None
    assert answer(engine, next_prompt(session)).n_cached == 16


def test_the_engine_thread_reads_again_without_another_request(toy, monkeypatch):
    monkeypatch.undo()
    thread = EngineThread(engine := engine_of(toy))
    try:
        thread.call(lambda: answer(engine))
        wait_until(lambda: engine.prefix_cache.stats.reread_tokens > 0)
    finally:
        thread.close()
