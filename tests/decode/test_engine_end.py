"""What ends the engine, and that a session can't."""

import numpy as np
import pytest
from oracles import Oracle, naive
from toy import Toy, finish

from dflash.decode.drafters.first_of import FirstOf
from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.engine import MAX_FAILURES, Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.errors import DeviceLost, EngineFailed, KernelError
from dflash.kernels.gpu.lost import is_lost

PROMPT = [1, 2, 3]


class CUDARuntimeError(RuntimeError):
    """As CuPy's."""

    def __init__(self, status):
        super().__init__(f"cudaError {status}")
        self.status = status


def raising(error, times=10**9):
    """Something to call before a forward that raises so many times."""
    left = [times]

    def raises(_):
        left[0] -= 1
        if left[0] >= 0:
            raise error

    return raises


def test_one_failed_forward_does_not_end_the_engine_nor_do_some_with_good_ones_between():
    toy = Toy(slots=1)
    engine = Engine(toy)
    for _ in range(3):
        toy.before_forward = raising(KernelError("no"), MAX_FAILURES - 1)
        sessions = [engine.add(Session(PROMPT, max_tokens=3)) for _ in range(MAX_FAILURES)]
        finish(engine)
        assert [session.finish_reason for session in sessions] == ["error"] * (MAX_FAILURES - 1) + ["length"]
        assert sessions[-1].output_ids == naive(toy, PROMPT, Sampling(), 3)


def test_failures_in_a_row_end_the_engine_and_every_session():
    toy = Toy(slots=1)
    toy.before_forward = raising(KernelError("the device is on fire"))
    engine = Engine(toy)
    sessions = [engine.add(Session(PROMPT, max_tokens=3)) for _ in range(MAX_FAILURES + 2)]
    events = [event for _ in range(MAX_FAILURES) for event in engine.step()]
    assert [event.session for event in events] == sessions
    assert {event.step.finish for event in events} == {"error"}
    assert [type(session.error) for session in sessions] == [KernelError] * MAX_FAILURES + [EngineFailed] * 2
    assert "the device is on fire" in str(sessions[-1].error)
    assert toy.leaked == (0, 0, 0)
    assert engine.busy
    for call in (engine.step, lambda: engine.add(Session(PROMPT))):
        with pytest.raises(EngineFailed, match="takes no more work: 3 forwards in a row failed"):
            call()


@pytest.mark.parametrize("where", ["forward", "commit", "state"])
@pytest.mark.parametrize("error", [DeviceLost("CUDA_ERROR_ECC"), CUDARuntimeError(700)], ids=["ours", "CuPy's"])
def test_a_lost_device_ends_the_engine_at_once(monkeypatch, where, error):
    toy = Toy(slots=2)
    engine = Engine(toy)
    sessions = [engine.add(Session([i], max_tokens=9)) for i in range(4)]
    engine.step()
    if where == "forward":
        toy.before_forward = raising(error)
    elif where == "commit":
        monkeypatch.setattr(sessions[0].state, "commit", raising(error))
    else:
        sessions[0].cancel()
        monkeypatch.setattr(toy, "state", lambda: raising(error)(None))
    engine.step()
    assert all(session.finished for session in sessions)
    assert isinstance(sessions[3].error, EngineFailed)
    assert "the device is lost" in str(sessions[3].error)
    with pytest.raises(EngineFailed):
        engine.step()
    assert toy.leaked == (0, 0, 0)


def test_which_errors_mean_that_the_device_is_lost():
    wrapped = KernelError("waiting for the GPU")
    wrapped.__cause__ = CUDARuntimeError(719)
    for lost in (DeviceLost(""), CUDARuntimeError(700), wrapped):
        assert is_lost(lost)
    for other in (None, KernelError("launch"), CUDARuntimeError(2), CUDARuntimeError(201), ValueError(700)):
        assert not is_lost(other)


def test_a_strategy_nested_too_deep_to_start_ends_its_session_alone():
    toy = Toy()
    engine = Engine(toy)
    drafter = Plain().drafter
    for _ in range(2000):
        deeper = FirstOf(Plain())
        deeper.drafters = (drafter,)
        drafter = deeper
    good, bad = (engine.add(Session(PROMPT, max_tokens=5, strategy=each)) for each in (Plain(), Strategy(drafter)))
    finish(engine)
    assert isinstance(bad.error, RecursionError)
    assert good.output_ids == naive(toy, PROMPT, Sampling(), 5)
    assert toy.leaked == (0, 0, 0)


class Unprintable(Oracle):
    """What a name nested some hundred deep is: it runs, and can't be formatted."""

    def __repr__(self):
        raise RecursionError


def test_the_end_of_a_session_does_not_format_it():
    toy = Toy()
    engine = Engine(toy)
    strategy = Strategy(Unprintable((), "chain"))
    whole, cancelled = (engine.add(Session(PROMPT, max_tokens=5, strategy=strategy)) for _ in range(2))
    with pytest.raises(RecursionError):
        repr(whole)
    engine.step()
    cancelled.cancel()
    finish(engine)
    assert (whole.finish_reason, cancelled.finish_reason) == ("length", "cancelled")
    assert toy.leaked == (0, 0, 0)


def test_a_plan_that_fails_ends_its_sessions(monkeypatch):
    toy = Toy()
    engine = Engine(toy)
    bad = engine.add(Session(PROMPT, max_tokens=5))
    engine.step()
    monkeypatch.setattr("dflash.decode.engine.plan", lambda *_: np.zeros(3)[4])
    engine.step()
    assert isinstance(bad.error, IndexError)
    monkeypatch.undo()
    assert [step.finish for step in engine.stream(Session(PROMPT, max_tokens=2))][-1] == "length"
    assert toy.leaked == (0, 0, 0)


def test_everything_is_given_back_though_giving_back_fails(monkeypatch):
    toy = Toy()
    engine = Engine(toy)
    session = engine.add(Session(PROMPT, max_tokens=5))
    engine.step()
    monkeypatch.setattr(session, "drafter_state", _ClosesBadly())
    monkeypatch.setattr(session, "prompt_snapshot", _ClosesBadly())
    session.cancel()
    engine.step()
    assert "can't close" in str(session.error)
    assert toy.leaked == (0, 0, 0)


class _ClosesBadly:
    def close(self):
        raise RuntimeError("can't close")


def test_companions_are_all_closed_though_one_fails():
    toy, closed = Toy(), []

    class Companion:
        def close(self):
            closed.append(self)
            raise RuntimeError("can't close")

    toy.attachments.update({i: Companion() for i in range(3)})
    with pytest.raises(RuntimeError):
        Engine(toy).close()
    assert len(closed) == 3
    assert not toy.attachments
