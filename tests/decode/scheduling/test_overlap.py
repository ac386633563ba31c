"""Forwards launched before their tokens are known: what is written stays the same, whatever happens in between."""

from types import SimpleNamespace

import numpy as np
import pytest
from ahead_toy import AheadToy
from oracles import naive
from toy import finish

from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.draft import Draft
from dflash.decode.drafting.drafter import NO_DRAFT, Drafter, DraftPlan, Plain, Strategy
from dflash.decode.engine import Engine
from dflash.decode.recoveries.loop_guard import LoopGuard
from dflash.decode.recoveries.min_tokens import MinTokens
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.model.batch import Span

PROMPT = [1, 5, 2, 8]


@pytest.fixture
def toy():
    toy = AheadToy()
    yield toy
    assert toy.leaked == (0, 0, 0)


@pytest.mark.parametrize("n", [1, 2, 30])
def test_steps_of_one_sequence_are_launched_ahead(toy, n):
    session = Session(PROMPT, max_tokens=n)
    for _ in Engine(toy).stream(session):
        pass
    assert session.output_ids == naive(toy, PROMPT, Sampling(), n)
    assert toy.ahead == n - 1


def test_texts_that_come_and_go(toy):
    engine = Engine(toy, chunk=3)
    lengths = [3, 40, 11, 25, 1, 17]
    sessions = [Session([i + 1] * (i + 1), max_tokens=n) for i, n in enumerate(lengths)]
    for session in sessions:
        engine.add(session)
        for _ in range(4):
            engine.step()
    finish(engine)
    assert [s.output_ids for s in sessions] == [
        naive(toy, s.prompt_ids, Sampling(), n) for s, n in zip(sessions, lengths, strict=True)
    ]
    assert toy.ahead > 20


@pytest.mark.parametrize("strategy", [Plain(), Strategy(PromptLookup(min_ngram=1))], ids=["plain", "lookup"])
def test_prompts_are_read_behind_sessions_that_decode(toy, strategy):
    """Results of either forward are gone with the next one of its kind, as on a device."""
    engine = Engine(toy, chunk=4)
    sessions = [Session([i + 1, 2] * (7 * i + 2), max_tokens=40, strategy=strategy) for i in range(5)]
    sessions.append(Session([3] * 30, max_tokens=9, prompt_logprobs=1))
    for session in sessions:
        engine.add(session)
        for _ in range(3):
            engine.step()
    finish(engine)
    assert [s.output_ids for s in sessions] == [naive(toy, s.prompt_ids, Sampling(), s.max_tokens) for s in sessions]
    assert toy.n_behind > 15


@pytest.mark.parametrize("spared", [(), (1, 4)], ids=["at their lengths", "and at end tokens"])
def test_steps_in_which_sessions_end_are_launched_ahead_for_the_others(toy, spared):
    lengths, engine = [20, 9, 14, 9, 17, 11, 24], Engine(toy)
    truths = [naive(toy, [i + 1], Sampling(), n) for i, n in enumerate(lengths)]
    sessions = [
        engine.add(Session([i + 1], max_tokens=n, eos=[truth[6]] if i in spared else []))
        for i, (n, truth) in enumerate(zip(lengths, truths, strict=True))
    ]
    finish(engine)
    for i, (session, truth) in enumerate(zip(sessions, truths, strict=True)):
        assert session.output_ids == (truth[: truth.index(truth[6]) + 1] if i in spared else truth)
    assert toy.ahead >= (23 if not spared else 19)


def test_an_unplanned_end(toy):
    truth = naive(toy, PROMPT, Sampling(), 30)
    eos = truth[12]
    end = truth.index(eos) + 1
    other = Session([3], max_tokens=30)
    ends, stops = Session(PROMPT, max_tokens=30, eos=[eos]), Session(PROMPT, max_tokens=30, observer=lambda s, _: 0)
    engine = Engine(toy)
    for session in (ends, other, stops):
        engine.add(session)
    finish(engine)
    assert ends.output_ids == truth[:end]
    assert stops.output_ids == []
    assert other.output_ids == naive(toy, [3], Sampling(), 30)


@pytest.mark.parametrize(("most", "ahead"), [(1, 0), (2, 8)])
def test_no_more_sequences_ahead_than_a_pass_holds(toy, most, ahead):
    toy.most_overlapped = most
    engine = Engine(toy)
    sessions = [engine.add(Session(prompt, max_tokens=10)) for prompt in (PROMPT, PROMPT[::-1])]
    finish(engine)
    assert [s.output_ids for s in sessions] == [naive(toy, s.prompt_ids, Sampling(), 10) for s in sessions]
    assert toy.ahead >= ahead
    assert (toy.ahead == 0) == (ahead == 0)


@pytest.mark.parametrize("what", ["another forward", "a snapshot", "cancelled", "a guest"])
def test_what_happens_in_between(toy, what):
    engine = Engine(toy)
    one, other = Session(PROMPT, max_tokens=20), Session(PROMPT[::-1], max_tokens=20)
    engine.add(one), engine.add(other)
    for _ in range(5):
        engine.step()
    assert toy.ahead
    if what == "another forward":
        state = toy.state()
        state.reserve(1)
        toy.forward([Span(state, np.array([1], np.int32), np.array([-1], np.int32))])
        state.close()
    elif what == "a snapshot":
        one.state.snapshot().close()
    elif what == "cancelled":
        other.cancel()
    else:
        guest = engine.add(Session([7, 7, 7], max_tokens=9, sampling=Sampling(repetition_penalty=1.5)))
    finish(engine)
    assert one.output_ids == naive(toy, PROMPT, Sampling(), 20)
    truth = naive(toy, PROMPT[::-1], Sampling(), 20)
    assert other.output_ids == (truth if what != "cancelled" else truth[: len(other.output_ids)])
    if what == "a guest":
        assert guest.output_ids == naive(toy, [7, 7, 7], Sampling(repetition_penalty=1.5), 9)


@pytest.mark.parametrize(
    "sampling", [Sampling(logprobs=2), Sampling(repetition_penalty=1.2), Sampling(logit_bias={3: 1.0})], ids=str
)
def test_sessions_that_need_their_tokens_on_the_host_are_not_overlapped(toy, sampling):
    session = Session(PROMPT, max_tokens=10, sampling=sampling)
    for _ in Engine(toy).stream(session):
        pass
    assert session.output_ids == naive(toy, PROMPT, sampling, 10)
    assert toy.ahead == 0


def test_sessions_with_a_recovery_are_not_overlapped(toy):
    """A recovery may change what follows; when it has nothing more to do, forwards are launched ahead again."""
    truth = naive(toy, PROMPT, Sampling(), 20)
    for recovery, ahead in ((LoopGuard(), False), (MinTokens(6), True)):
        toy.ahead = 0
        session = Session(PROMPT, max_tokens=20, strategy=Plain() | recovery, eos=[99])
        for _ in Engine(toy).stream(session):
            pass
        assert session.output_ids == truth
        assert (toy.ahead == 13) == ahead
        assert (toy.ahead == 0) != ahead


def test_sessions_with_forced_tokens_are_not_overlapped(toy):
    class Says:
        def start(self, session):
            session.forced_ids = (3, 1, 4)

    session = Session(PROMPT, max_tokens=20, strategy=Plain() | Says())
    for _ in Engine(toy).stream(session):
        pass
    assert session.output_ids == [3, 1, 4, *naive(toy, [*PROMPT, 3, 1, 4], Sampling(), 17)]
    assert toy.ahead == 15


class Seeing(Drafter):
    """Foresees that it drafts in every sixth step only, and notes what it is shown."""

    capture = (0,)

    def start(self, session, model, snapshot=None):
        self.session, self.model, self.seen = session, model, []
        return self

    @property
    def n_steps(self):
        return sum(bool(step.tokens) for step in self.session.steps)

    def propose(self, drafter_states, max_drafts):
        return [Draft([1] if self.n_steps % 6 == 5 else []) for _ in max_drafts]

    def plan_next(self, drafter_states, drafts):
        return [None if (self.n_steps + 1) % 6 == 5 else NO_DRAFT]

    def observe(self, step, out, rows):
        assert self.model.latest is out, "another forward has taken its place"
        self.seen.append(rows)

    def close(self):
        pass


def test_a_drafter_sees_all_of_the_text(toy):
    """Where it foresees nothing, before the next forward; elsewhere after the step."""
    drafter, captures = Seeing(), []
    forward_overlapped = toy.forward_overlapped

    def counted(spans, *, capture=()):
        captures.append(capture)
        return forward_overlapped(spans, capture=capture)

    toy.forward_overlapped = counted
    session = Session(PROMPT, max_tokens=20, strategy=Strategy(drafter))
    for _ in Engine(toy).stream(session):
        pass
    assert session.output_ids == naive(toy, PROMPT, Sampling(), 20)
    assert toy.ahead > 10
    assert set(captures) == {(0,)}
    shown = [len(range(10)[rows]) if isinstance(rows, slice) else len(rows) for rows in drafter.seen]
    assert sum(shown) == len(PROMPT) - 1 + 20 - len(session.steps[-1].tokens), "the last ones are of no use to anybody"


class Following(Drafter):
    """Drafts a token that is mostly wrong; says that a device could begin with it."""

    capture = ()

    def __init__(self):
        self.asked = []

    def start(self, session, model, snapshot=None):
        return SimpleNamespace(capture=(), session=session, observe=lambda step, out, rows: None, close=lambda: None)

    def propose(self, drafter_states, max_drafts):
        return [Draft([1]) for _ in max_drafts]

    def plan_next(self, drafter_states, drafts):
        return [DraftPlan(self, drafter_state.session) for drafter_state in drafter_states]

    def launch_ahead(self, wishes, order, taken):
        self.asked.append((wishes, order))


def test_device_drafts_begin_for_sessions_that_can_be_overlapped(toy):
    """In a batch of several strategies, each drafter once for its own, whatever the others do."""
    one, other = Following(), Following()
    drafters = [None, one, other, None, one]
    sessions = [
        Session([i + 1], max_tokens=12, strategy=Plain() if drafter is None else Strategy(drafter))
        for i, drafter in enumerate(drafters)
    ]
    engine = Engine(toy)
    for session in sessions:
        engine.add(session)
    engine.step()
    assert one.asked == [([sessions[1], sessions[4]], [1, 4])]
    assert other.asked == [([sessions[2]], [2])]
    assert toy.ahead == 0
    finish(engine)
    assert [s.output_ids for s in sessions] == [naive(toy, s.prompt_ids, Sampling(), 12) for s in sessions]
