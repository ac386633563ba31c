"""Who shares a forward, when a session ends, and what is refused."""

import threading
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from oracles import Oracle, naive
from toy import Toy, finish

from dflash.decode.drafting.draft import Draft
from dflash.decode.drafting.drafter import Drafter, Plain, Strategy
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.errors import ContextOverflow, PoolExhausted, RequestError

PROMPT = [1, 2, 3]


def test_prompts_share_a_chunk_and_ride_with_those_that_write():
    toy = Toy()
    engine = Engine(toy, chunk=4)
    for n in (1, 4, 7):
        engine.add(Session(range(n), max_tokens=20))
    for _ in range(4):
        engine.step()
    assert toy.forwards == [
        [(1, False), (3, True), (1, True)],
        [(1, False), (1, False), (4, True)],
        [(1, False), (1, False), (1, True)],
        [(1, False), (1, False), (1, False)],
    ]
    engine.close()


def test_drafts_leave_room_for_a_prompt():
    toy = Toy(rows=24)
    engine = Engine(toy, chunk=8)
    truth = naive(toy, PROMPT, Sampling(), 60)
    oracle = Strategy(Oracle(((*PROMPT, *truth),), "right", size=63, greedy_for_room=True))
    for _ in range(2):
        engine.add(Session(PROMPT, max_tokens=60, strategy=oracle))
    engine.step()
    engine.add(Session([0] * 30, max_tokens=1))
    engine.step()
    assert toy.forwards[1] == [(8, False), (8, False), (8, True)]
    engine.close()


def test_sessions_join_and_leave_between_steps():
    toy = Toy()
    engine = Engine(toy)
    first, second = Session(PROMPT, max_tokens=6), Session(PROMPT, max_tokens=2)
    engine.add(first)
    engine.step()
    engine.step()
    engine.add(second)
    assert (engine.active, engine.waiting) == (1, 1)
    events = engine.step()
    assert [event.session for event in events] == [first, second]
    assert engine.active == 2
    finish(engine)
    assert second.output_ids == first.output_ids[:2]
    assert toy.leaked == (0, 0, 0)
    assert engine.step() == []


def test_a_session_that_does_not_fit_waits():
    toy = Toy(pages=2, slots=8)
    engine = Engine(toy)
    sessions = [engine.add(Session(PROMPT, max_tokens=n)) for n in (250, 5, 300, 5)]
    engine.step()
    assert (engine.active, engine.waiting) == (2, 2)
    finish(engine)
    assert [session.n_tokens for session in sessions] == [250, 5, 300, 5]
    assert sessions[2].started_at > sessions[0].ended_at
    assert toy.leaked == (0, 0, 0)


def test_at_most_so_many_run():
    engine = Engine(Toy(slots=8), max_active=2)
    for _ in range(5):
        engine.add(Session(PROMPT, max_tokens=3))
    engine.step()
    assert (engine.active, engine.waiting) == (2, 3)
    finish(engine)


def test_nothing_to_write():
    toy = Toy(context=3)
    engine = Engine(toy)
    session = engine.add(Session(PROMPT, max_tokens=0))
    ((of, step),) = engine.step()
    assert (of, step.finish, session.finish_reason, session.output_ids) == (session, "length", "length", [])
    assert toy.forwards == []


def test_the_context_is_the_limit():
    toy = Toy(context=10)
    for n in (None, 99):
        session = Session(PROMPT, max_tokens=n)
        list(Engine(toy).stream(session))
        assert (session.n_tokens, session.finish_reason) == (7, "length")


def test_the_memory_is_the_limit():
    session = Session(PROMPT, max_tokens=None)
    list(Engine(Toy(pages=1, context=10**6)).stream(session))
    assert (session.n_tokens, session.finish_reason) == (254, "length")


@pytest.mark.parametrize("strategy", ["plain", "draft"])
@pytest.mark.parametrize("cut", [0, 1])
def test_a_stop_seen_from_above_cuts_inside_the_step(strategy, cut):
    toy = Toy(rows=64)
    truth = naive(toy, PROMPT, Sampling(logprobs=1), 20)
    wanted = truth[9:11]
    seen = []

    def observer(_, tokens):
        for i, token in enumerate(tokens):
            seen.append(token)
            if seen[-2:] == wanted:
                return i + cut
        return None

    chosen = Plain() if strategy == "plain" else Strategy(Oracle(((*PROMPT, *truth),), "right", size=7))
    session = Session(PROMPT, max_tokens=20, observer=observer, strategy=chosen, sampling=Sampling(logprobs=1))
    list(Engine(toy).stream(session))
    end = next(i for i in range(1, 20) if truth[i - 1 : i + 1] == wanted)
    assert session.output_ids == truth[: end + cut]
    assert [entry.token for entry in session.logprobs] == session.output_ids
    assert (session.finish_reason, session.stop_token) == ("stop", None)
    assert session.steps[-1].finish == "stop"
    assert session.steps[-1].accepted <= len(session.steps[-1].tokens)
    assert [token for step in session.steps for token in step.tokens] == session.output_ids
    assert toy.leaked == (0, 0, 0)


def test_the_observer_sees_the_end_token():
    toy, seen = Toy(), []
    truth = naive(toy, PROMPT, Sampling(), 5)
    session = Session(PROMPT, eos=[truth[0]], observer=lambda s, tokens: seen.append((s.finished, *tokens)))
    list(Engine(toy).stream(session))
    assert seen == [(False, truth[0])]
    assert (session.output_ids, session.finish_reason, session.stop_token) == (truth[:1], "stop", truth[0])


def test_streams_of_one_engine_side_by_side():
    toy = Toy()
    engine = Engine(toy)
    sessions = [Session([i], max_tokens=8) for i in range(3)]
    streams = [engine.stream(session) for session in sessions]
    for _ in range(9):
        for stream in streams:
            next(stream, None)
    assert all(session.finished for session in sessions)
    assert max(len(spans) for spans in toy.forwards) == 3
    assert [session.output_ids for session in sessions] == [naive(toy, [i], Sampling(), 8) for i in range(3)]


def test_sessions_come_from_any_thread():
    toy = Toy(slots=4)
    engine, sessions = Engine(toy), [Session([i], max_tokens=10) for i in range(12)]
    threads = [threading.Thread(target=engine.add, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    while not all(session.finished for session in sessions):
        engine.step()
    for thread in threads:
        thread.join()
    assert [session.output_ids for session in sessions] == [naive(toy, [i], Sampling(), 10) for i in range(12)]


@pytest.mark.parametrize(
    ("prompt", "arguments", "message"),
    [
        ([], {}, "at least one token"),
        ([[1, 2]], {}, "one sequence of token ids"),
        ([[1], [2, 3]], {}, "nested"),
        ([1.5], {}, "token ids, got float64"),
        (["a"], {}, "token ids"),
        ([1, -5], {}, "token -5 at 1"),
        ([2**40], {}, "not in the vocabulary"),
        ([1], {"max_tokens": -1}, "max_tokens: must be a whole number of at least 0, got -1"),
    ],
)
def test_no_session_of(prompt, arguments, message):
    with pytest.raises(RequestError, match=message):
        Session(prompt, **arguments)


@pytest.mark.parametrize(
    ("session", "error", "message"),
    [
        (Session([1, 13]), RequestError, "token 13 at 1 is not in the vocabulary, ids are 0 to 12"),
        (Session([1], sampling=Sampling(logit_bias={13: 1})), RequestError, "logit_bias: token 13"),
        (Session([1], strategy=Plain() | "watch"), RequestError, "is not a recovery"),
        (Session([1] * 2001), ContextOverflow, "prompt has 2001 tokens, the context of 2000"),
        (Session([1] * 2000), ContextOverflow, "room for one more"),
        (Session([1] * 1000, max_tokens=30), PoolExhausted, "1000 tokens and 30 new ones never fit 768"),
        (Session([1] * 800), PoolExhausted, "never fit 768"),
    ],
)
def test_what_can_never_run_is_refused_at_once(session, error, message):
    engine = Engine(Toy(pages=3))
    with pytest.raises(error, match=message):
        engine.add(session)
    assert not engine.busy


def test_a_session_runs_once():
    engine = Engine(Toy())
    session = engine.add(Session([1], max_tokens=1))
    with pytest.raises(RequestError, match="added before"):
        engine.add(session)
    engine.close()


def test_times_and_counts():
    toy = Toy()
    session = Session(PROMPT, max_tokens=4)
    steps = list(Engine(toy).stream(session))
    assert steps == session.steps
    assert session.added_at <= session.started_at <= session.first_token_at <= session.ended_at
    assert all(step.batch == (2 if step.prefilled else 1) for step in steps)
    assert all(step.forward > 0 for step in steps)
    assert (session.n_prefilled, session.n_tokens, session.prompt_ids) == (2, 4, PROMPT)
    assert repr(session) == "Session(3 + 4 tokens, Plain(), length)"


@dataclass(frozen=True)
class Counted(Drafter):
    """Drafts nothing that is right, wants to see some layers, and notes whom it is asked about together."""

    wanted: tuple[int, ...]

    def start(self, session, model, snapshot=None):
        return _Counting(self.wanted, session)

    def propose(self, drafter_states, max_drafts):
        TOGETHER.append([drafter_state.session.strategy.shape for drafter_state in drafter_states])
        return super().propose(drafter_states, max_drafts)


class _Counting:
    def __init__(self, wanted, session):
        self.capture, self.session = wanted, session

    def propose(self, max_draft):
        return Draft([1, 2, 3], [-1, -1, 0])

    def observe(self, step, out, rows):
        assert all(len(out.captured[layer][rows]) for layer in self.capture)

    def close(self):
        pass


TOGETHER = []


def test_one_drafter_proposes_once_for_all_shapes():
    TOGETHER.clear()
    engine = Engine(Toy())
    shapes = [Chain(2), Tree(8), None]
    for shape in shapes:
        engine.add(Session(PROMPT, max_tokens=2, strategy=Strategy(Counted((1,)), shape)))
    engine.add(Session(PROMPT, max_tokens=2, strategy=Strategy(Counted((2,)), shapes[1])))
    engine.add(Session(PROMPT, max_tokens=2))
    engine.step()
    engine.step()
    assert [shapes, shapes[1:2]] == TOGETHER
    finish(engine)


def test_a_forward_captures_what_any_drafter_wants():
    toy, captured = Toy(), []
    forward = toy.forward
    toy.forward = lambda spans, *, capture=(): captured.append(capture) or forward(spans, capture=capture)
    engine = Engine(toy)
    for wanted in ((5, 1), (), (2, 5)):
        engine.add(Session(PROMPT, max_tokens=3, strategy=Strategy(Counted(wanted))))
    finish(engine)
    assert set(captured) == {(1, 2, 5)}


@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_a_step_tells_its_draft_and_where_each_token_was_picked(kind):
    toy = Toy()
    truth = naive(toy, PROMPT, Sampling(), 40)
    session = Session(PROMPT, max_tokens=40, strategy=Strategy(Oracle(((*PROMPT, *truth),), kind, p=0.8)))
    list(Engine(toy).stream(session))
    assert any(step.accepted > 1 for step in session.steps)
    for step in session.steps:
        assert len(step.draft) == step.drafted
        if not step.tokens:
            continue
        nodes = [row - 1 for row in step.rows]
        assert nodes[0] == -1
        for above, node, token in zip(nodes, nodes[1:], step.tokens, strict=False):
            assert (step.draft.parents[node], step.draft.tokens[node]) == (above, token)
        last = step.draft.child(nodes[-1], step.tokens[-1])
        assert step.accepted == len(step.tokens) - (last < 0)


def test_a_drafter_is_prepared_before_it_is_started():
    @dataclass(frozen=True)
    class Careful(Counted):
        def prepare(self, model):
            model.attachments["careful"] = closing

        def start(self, session, model, snapshot=None):
            assert model.attachments["careful"] is closing
            return super().start(session, model, snapshot)

    closed = []
    closing = SimpleNamespace(close=lambda: closed.append(True))
    toy = Toy()
    engine = Engine(toy)
    list(engine.stream(Session(PROMPT, max_tokens=2, strategy=Strategy(Careful(())))))
    assert not closed
    engine.close()
    assert (closed, toy.attachments) == ([True], {})
