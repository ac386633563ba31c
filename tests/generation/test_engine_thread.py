"""The thread that runs the loop: what happens when things go wrong around it."""

import queue
import threading

import pytest
from hang_guard import GUARD, wait_until

from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Step
from dflash.errors import Cancelled, DFlashError
from dflash.generation.completion import Completion
from dflash.generation.engine_thread import EngineThread


def answer_of(lm, text="import os", **settings):
    return Completion(lm.tokenizer, lm.tokenizer.encode(text), sampling=Sampling(), **settings)


def ended(deltas):
    """Wait for the last delta and return its step."""
    while True:
        step = deltas.get(timeout=GUARD).step
        if step.finish is not None:
            return step


def test_a_sink_that_fails_ends_its_answer_alone(lm, pools, caplog):
    def fail(_):
        raise OSError("nobody there")

    deltas, good, bad = queue.SimpleQueue(), answer_of(lm, max_tokens=50), answer_of(lm, max_tokens=5000)
    lm._engine_thread.submit(bad, fail)
    lm._engine_thread.submit(good, deltas.put)
    assert ended(deltas).finish == "length"
    wait_until(lambda: bad.session.finished)
    assert bad.session.finish_reason == "cancelled"
    assert "nobody there" in caplog.text


def test_calls_run_in_the_engines_thread_and_hand_errors_back(lm):
    assert lm.call(lambda: threading.current_thread().name) == "dflash-engine"
    with pytest.raises(ZeroDivisionError):
        lm.call(lambda: 1 // 0)


def test_interrupting_a_caller_frees_its_sequences(lm, pools, monkeypatch):
    class Interrupted(queue.SimpleQueue):
        def get(self, **_):
            Interrupted.get = queue.SimpleQueue.get
            raise KeyboardInterrupt

    monkeypatch.setattr("dflash.generation.stream.queue.SimpleQueue", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        lm.generate(["import os", "import sys"], max_tokens=4000)


class Broken:
    """An engine whose second step fails."""

    def __init__(self):
        self.sessions, self.closed, self.n_steps = [], False, 0

    @property
    def busy(self):
        return bool(self.sessions)

    def add_all(self, sessions):
        self.sessions += sessions

    def step(self):
        self.n_steps += 1
        if self.n_steps == 2:
            raise MemoryError("the device is gone")
        return [(session, Step([])) for session in self.sessions]

    def close(self):
        self.sessions, self.closed = [], True


def test_an_engine_that_fails_tells_everyone(lm, caplog):
    engine = Broken()
    engine_thread, deltas, answer = EngineThread(engine), queue.SimpleQueue(), answer_of(lm)
    engine_thread.submit(answer, deltas.put)
    assert ended(deltas).finish == "error"
    engine_thread.close()
    assert engine.closed
    assert not engine_thread.alive
    with pytest.raises(DFlashError, match="the device is gone"):
        engine_thread.submit(answer_of(lm), deltas.put)
    assert "the device is gone" in caplog.text


def test_closing_ends_what_runs_and_what_waits():
    class Idle(Broken):
        def step(self):
            ended = [(session, Step([], finish="cancelled")) for session in self.sessions]
            self.sessions = []
            return ended

    engine_thread = EngineThread(Idle())
    engine_thread.close()
    engine_thread.close()
    with pytest.raises(Cancelled):
        engine_thread.call(lambda: None)
