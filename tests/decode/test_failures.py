"""Whatever happens, nothing leaks, and only who is concerned fails."""

import threading
from dataclasses import dataclass

import numpy as np
import pytest
from oracles import Oracle, naive
from toy import Toy, finish

from dflash.decode.drafting.draft import Draft
from dflash.decode.drafting.drafter import Drafter, Strategy
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.errors import DFlashError, KernelError, PoolExhausted

PROMPT = [1, 2, 3]


def test_a_thousand_generations_with_cancellations():
    toy = Toy(slots=4, pages=6)
    engine = Engine(toy, chunk=7)
    rng = np.random.default_rng(4)
    oracle = Strategy(Oracle((), "tree", size=9))
    sessions = []
    while len(sessions) < 1000 or engine.busy:
        if len(sessions) < 1000 and rng.random() < 0.8:
            prompt = rng.integers(0, 13, rng.integers(1, 40)).tolist()
            strategy = oracle if rng.random() < 0.5 else Strategy()
            sessions.append(engine.add(Session(prompt, max_tokens=int(rng.integers(0, 30)), strategy=strategy)))
        if sessions and rng.random() < 0.5:
            sessions[-int(rng.integers(1, 9)) % len(sessions)].cancel()
        engine.step()
    reasons = [session.finish_reason for session in sessions]
    assert set(reasons) == {"length", "cancelled"}
    assert 100 < reasons.count("cancelled") < 900
    assert toy.leaked == (0, 0, 0)


def test_cancelled_between_chunks_of_the_prompt():
    toy = Toy()
    engine = Engine(toy, chunk=2)
    session = engine.add(Session([1] * 50))
    engine.step()
    session.cancel()
    ((_, step),) = engine.step()
    assert step.finish == session.finish_reason == "cancelled"
    assert len(toy.forwards) == 1
    assert toy.leaked == (0, 0, 0)


def test_cancelled_while_it_waits():
    toy = Toy(slots=1)
    engine = Engine(toy)
    first, second = (engine.add(Session(PROMPT, max_tokens=3)) for _ in range(2))
    engine.step()
    second.cancel()
    engine.step()
    assert second.finish_reason == "cancelled"
    finish(engine)
    assert first.finish_reason == "length"


@pytest.mark.parametrize("how", ["closed", "dropped", "raised"])
def test_a_stream_that_is_left(how):
    toy = Toy()
    engine = Engine(toy)
    other = engine.add(Session(PROMPT, max_tokens=30))
    session = Session(PROMPT)
    stream = engine.stream(session)
    for _ in range(4):
        next(stream)
    assert toy.leaked[1] == 2
    if how == "closed":
        stream.close()
    elif how == "dropped":
        del stream
    else:
        with pytest.raises(KeyError):
            stream.throw(KeyError())
    assert session.finish_reason == "cancelled"
    assert toy.leaked[1] == 1
    finish(engine)
    assert other.output_ids == naive(toy, PROMPT, Sampling(), 30)
    assert toy.leaked == (0, 0, 0)


def test_run_cancels_what_was_added_before_a_refusal():
    toy = Toy()
    engine = Engine(toy)
    good = Session(PROMPT)
    with pytest.raises(DFlashError):
        list(engine.run([good, Session([99])]))
    assert good.finish_reason == "cancelled"
    assert not engine.busy


def test_closing_the_engine_cancels_all_sessions_and_frees_their_memory():
    toy = Toy(slots=2)
    engine = Engine(toy)
    sessions = [engine.add(Session(PROMPT)) for _ in range(3)]
    engine.step()
    engine.close()
    assert {session.finish_reason for session in sessions} == {"cancelled"}
    assert not engine.busy
    assert toy.leaked == (0, 0, 0)


def test_a_forward_fails_those_in_it_and_no_one_else():
    toy = Toy(slots=2)
    engine = Engine(toy)
    sessions = [engine.add(Session(PROMPT, max_tokens=3)) for _ in range(4)]
    engine.step()

    def fail(_):
        toy.before_forward = lambda spans: None
        raise KernelError("the device is on fire")

    toy.before_forward = fail
    events = engine.step()
    assert [(event.session, event.step.finish) for event in events] == [(session, "error") for session in sessions[:2]]
    assert all(isinstance(session.error, KernelError) for session in sessions[:2])
    finish(engine)
    assert [session.finish_reason for session in sessions] == ["error", "error", "length", "length"]
    assert toy.leaked == (0, 0, 0)


def test_a_failed_forward_outranks_a_cancellation():
    toy = Toy()
    session = Session(PROMPT)

    def fail(_):
        session.cancel()
        raise KernelError("the device is on fire")

    toy.before_forward = fail
    with pytest.raises(KernelError, match="on fire"):
        list(Engine(toy).stream(session))
    assert (session.finish_reason, session.cancelled) == ("error", True)
    assert toy.leaked == (0, 0, 0)


def test_an_interrupt_gives_everything_back():
    toy = Toy(slots=1)
    engine = Engine(toy)
    sessions = [engine.add(Session(PROMPT)) for _ in range(2)]
    engine.step()

    def interrupt(_):
        raise KeyboardInterrupt

    toy.before_forward = interrupt
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert {session.finish_reason for session in sessions} == {"cancelled"}
    assert toy.leaked == (0, 0, 0)


@dataclass(frozen=True)
class Broken(Drafter):
    """Fails at one place."""

    where: str

    def start(self, session, model, snapshot=None):
        if self.where == "start":
            raise RuntimeError(self.where)
        return _Breaking(self.where)


class _Breaking:
    capture = ()

    def __init__(self, where):
        self.where = where

    def propose(self, max_draft):
        if self.where == "propose":
            raise RuntimeError(self.where)
        return Draft([99]) if self.where == "ids are 0 to 12" else Draft([1])

    def observe(self, step, out, rows):
        if self.where == "observe":
            raise RuntimeError(self.where)

    def close(self):
        if self.where == "close":
            raise RuntimeError(self.where)


def failing(where):
    def fails(*_):
        raise RuntimeError(where)

    if where == "processor":
        return Session(PROMPT, max_tokens=9, processors=[fails])
    if where == "observer":
        return Session(PROMPT, max_tokens=9, observer=fails)
    if where == "to accept, got 5":
        return Session(PROMPT, max_tokens=9, observer=lambda session, tokens: 5)
    return Session(PROMPT, max_tokens=9, strategy=Strategy(Broken(where)))


@pytest.mark.parametrize(
    "where", ["start", "propose", "observe", "close", "processor", "observer", "to accept, got 5", "ids are 0 to 12"]
)
def test_one_that_fails_fails_alone(where):
    toy = Toy()
    engine = Engine(toy)
    good = [engine.add(Session([i], max_tokens=12)) for i in range(2)]
    bad = engine.add(failing(where))
    finish(engine)
    assert bad.finish_reason == bad.steps[-1].finish == "error"
    assert where in str(bad.error)
    assert [session.output_ids for session in good] == [naive(toy, [i], Sampling(), 12) for i in range(2)]
    assert toy.leaked == (0, 0, 0)


def test_logits_that_are_nan():
    toy = Toy(law=lambda text: np.full(13, np.nan if text[0] == 5 else len(text)))
    engine = Engine(toy)
    bad, good = engine.add(Session([5], max_tokens=3)), engine.add(Session([4], max_tokens=3))
    finish(engine)
    assert "NaN" in str(bad.error)
    assert good.output_ids == [0, 0, 0]


def test_memory_that_others_hold():
    toy = Toy(pages=2)
    state = toy.state()
    state.reserve(300)
    engine = Engine(toy)
    session = engine.add(Session(PROMPT, max_tokens=3))
    engine.step()
    assert isinstance(session.error, PoolExhausted)
    state.close()
    again = engine.add(Session(PROMPT, max_tokens=3))
    finish(engine)
    assert again.finish_reason == "length"


def test_cancelled_from_another_thread():
    toy = Toy()
    engine = Engine(toy)
    session = engine.add(Session(PROMPT))

    def cancel(_):
        """Cancel in another thread during the fifth forward."""
        if len(toy.forwards) == 5:
            thread = threading.Thread(target=session.cancel)
            thread.start()
            thread.join()

    toy.before_forward = cancel
    finish(engine)
    assert session.finish_reason == "cancelled"
    assert len(toy.forwards) == 5
    assert toy.leaked == (0, 0, 0)
