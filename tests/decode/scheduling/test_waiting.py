"""In which order waiting sessions start, what may overtake what, and how many may wait."""

from dataclasses import dataclass

import pytest
from oracles import Oracle
from toy import Toy, finish

from dflash.decode.drafters.adaptive.drafter import Adaptive
from dflash.decode.drafters.first_of import FirstOf
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.drafter import Drafter, Strategy
from dflash.decode.engine import Engine
from dflash.decode.scheduling.waiting import MAX_OVERTAKEN, WaitingQueue
from dflash.decode.session import Session
from dflash.errors import QueueFull, RequestError

PROMPT = [1, 2, 3]
LONG = 600
"""New tokens that need three pages of 256."""


def started(sessions):
    """Indices of the sessions that have started, in the order in which they did."""
    known = [i for i, session in enumerate(sessions) if session.started_at is not None]
    return sorted(known, key=lambda i: sessions[i].started_at)


def test_groups_take_turns_and_keep_their_own_order():
    engine = Engine(Toy(slots=1))
    sessions = [Session(PROMPT, max_tokens=2, group=group) for group in "aaaabb"] + [Session(PROMPT, max_tokens=2)]
    engine.add_all(sessions)
    finish(engine)
    assert started(sessions) == [0, 4, 6, 1, 5, 2, 3]


def test_a_lower_priority_number_starts_first():
    engine = Engine(Toy(slots=1))
    sessions = [Session(PROMPT, max_tokens=2, priority=priority) for priority in (1, 0, 2, -3, 0, 1)]
    engine.add_all(sessions)
    finish(engine)
    assert started(sessions) == [3, 1, 4, 0, 5, 2]


def test_an_urgent_session_does_not_wait_for_a_preempted_one_and_keeps_its_memory():
    engine = Engine(Toy(pages=4, slots=4), headroom=0)
    calm = [engine.add(Session(PROMPT, max_tokens=LONG, priority=1)) for _ in range(2)]
    while not engine.n_preempted:
        engine.step()
    urgent = engine.add(Session(PROMPT, max_tokens=LONG))
    engine.step()
    assert urgent.started_at is not None
    assert (engine.active, engine.waiting) == (2, 1)
    finish(engine)
    assert urgent.n_preempted == 0
    assert [session.n_tokens for session in (*calm, urgent)] == [LONG] * 3


def test_an_urgent_prompt_is_read_before_older_ones():
    engine = Engine(Toy(rows=128), chunk=64)
    calm = engine.add(Session([1] * 600, max_tokens=1, priority=1))
    engine.step()
    urgent = engine.add(Session([2] * 300, max_tokens=1))
    finish(engine)
    assert urgent.ended_at < calm.ended_at
    assert [len(session.output_ids) for session in (calm, urgent)] == [1, 1]


def test_a_request_of_many_texts_does_not_keep_a_later_one_waiting():
    engine = Engine(Toy(slots=2))
    many = [Session(PROMPT, max_tokens=2, group="many") for _ in range(200)]
    engine.add_all(many)
    engine.step()
    late = engine.add(Session(PROMPT, max_tokens=2, group="late"))
    while not late.finished:
        engine.step()
    assert len(started(many)) <= 6


def test_sessions_without_a_group_start_in_the_order_of_their_arrival():
    engine = Engine(Toy(slots=1))
    sessions = [engine.add(Session(PROMPT, max_tokens=1)) for _ in range(9)]
    finish(engine)
    assert started(sessions) == list(range(9))


def test_a_small_session_passes_one_that_does_not_fit_memory():
    engine = Engine(Toy(pages=4, slots=8), headroom=None)
    running = engine.add(Session(PROMPT, max_tokens=LONG))
    engine.step()
    big, small = engine.add(Session(PROMPT, max_tokens=LONG)), engine.add(Session(PROMPT, max_tokens=2))
    while not small.finished:
        engine.step()
    assert not running.finished
    assert big.started_at is None
    finish(engine)
    assert big.finish_reason == "length"


def test_no_more_than_so_many_may_pass():
    toy = Toy(pages=4, slots=8)
    engine = Engine(toy, headroom=None)
    engine.add(Session(PROMPT, max_tokens=LONG))
    engine.step()
    big = engine.add(Session(PROMPT, max_tokens=LONG))
    small = [engine.add(Session(PROMPT, max_tokens=1)) for _ in range(MAX_OVERTAKEN + 20)]
    while big.started_at is None:
        engine.step()
    assert sum(small[i].started_at < big.started_at for i in started(small)) == MAX_OVERTAKEN
    finish(engine)
    assert all(session.finish_reason == "length" for session in small)
    assert toy.leaked == (0, 0, 0)


def test_a_session_that_does_not_fit_is_not_tried_again_before_memory_returns():
    toy = Toy(pages=4, slots=8)
    engine = Engine(toy, headroom=None)
    engine.add(Session(PROMPT, max_tokens=LONG))
    engine.step()
    big = engine.add(Session(PROMPT, max_tokens=LONG, strategy=Strategy(Counting())))
    for _ in range(50):
        engine.step()
    assert big.strategy.drafter.n_prepared == [1]
    finish(engine)
    assert big.finish_reason == "length"


@dataclass(frozen=True, eq=False)
class Counting(Oracle):
    """Counts how often a session of its own was tried."""

    def __init__(self):
        super().__init__((), "chain")
        object.__setattr__(self, "n_prepared", [0])

    def prepare(self, model):
        self.n_prepared[0] += 1


def test_the_queue_is_bounded():
    engine = Engine(Toy(slots=2), max_waiting=3)
    engine.add_all([Session(PROMPT, max_tokens=9) for _ in range(5)])
    with pytest.raises(QueueFull, match="at most 3 may"):
        engine.add(Session(PROMPT))
    engine.step()
    with pytest.raises(QueueFull):
        engine.add(Session(PROMPT))
    finish(engine)
    assert engine.add(Session(PROMPT, max_tokens=1)).added_at is not None


def test_several_are_added_all_or_none():
    engine = Engine(Toy(slots=2), max_waiting=3)
    good = [Session(PROMPT, max_tokens=1) for _ in range(2)]
    for refused, error in (
        ([*good, Session([99])], RequestError),
        ([*good, good[0]], RequestError),
        ([*good, *(Session(PROMPT) for _ in range(9))], RequestError),
    ):
        with pytest.raises(error):
            engine.add_all(refused)
        assert not engine.busy
    engine.add(Session(PROMPT, max_tokens=1))
    with pytest.raises(QueueFull):
        engine.add_all([*good, *(Session(PROMPT) for _ in range(3))])
    assert engine.waiting == 1
    engine.add_all(good)
    finish(engine)
    assert [session.finish_reason for session in good] == ["length", "length"]


class Loaded(Drafter):
    """Has a draft model."""

    def prepare(self, model):
        model.attachments[self] = "a draft model"


def test_a_strategy_that_wants_more_texts_of_a_draft_model_than_it_has_is_refused_at_once():
    toy, drafter = Toy(slots=1), Loaded()
    drafter.prepare(toy)
    engine = Engine(toy)
    with pytest.raises(RequestError, match="names Loaded 2 times, its draft model has 1 slots"):
        engine.add(Session(PROMPT, strategy=Strategy(FirstOf(Adaptive(PromptLookup(), drafter), drafter))))
    assert not engine.busy


def test_removing_from_the_middle_of_a_group():
    queue = WaitingQueue()
    sessions = [Session(PROMPT, group=group) for group in "aab"]
    for session in sessions:
        queue.append(session)
    queue.remove(sessions[0])
    queue.remove(sessions[0])
    assert list(queue) == [sessions[1], sessions[2]]
    assert [ticket.session for ticket in queue.in_turn(1)] == [sessions[1]]
    queue.start(sessions[1])
    queue.remove(sessions[2])
    assert len(queue) == 0
    assert not queue.in_turn(5)
