"""Work beside the sessions: one piece before each step, whatever becomes of it."""

import pytest
from toy import Toy, finish

from dflash.decode.engine import Engine
from dflash.decode.session import Session
from dflash.errors import Cancelled


def test_one_piece_before_each_step():
    toy, noted = Toy(), []
    engine = Engine(toy)
    session = engine.add(Session([1, 2], max_tokens=6))
    for number in range(4):
        engine.errands.add(lambda number=number: noted.append((number, session.n_tokens)))
    finish(engine)
    # the first step reads the prompt, each further one writes a token
    assert noted == [(0, 0), (1, 0), (2, 1), (3, 2)]
    assert session.finish_reason == "length"


def test_an_engine_with_errands_alone_is_busy():
    engine = Engine(Toy())
    futures = [engine.errands.add(lambda number=number: number) for number in range(3)]
    steps = 0
    while engine.busy:
        assert engine.step() == []
        steps += 1
    assert (steps, [future.result(timeout=0) for future in futures]) == (3, [0, 1, 2])


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), KeyboardInterrupt()], ids=["Exception", "BaseException"])
def test_what_fails_fails_alone(error):
    def fail():
        raise error

    engine = Engine(Toy())
    failing, session = engine.errands.add(fail), engine.add(Session([1, 2], max_tokens=3))
    finish(engine)
    assert failing.exception(timeout=0) is error
    assert session.finish_reason == "length"


def test_closing_ends_what_waits():
    engine = Engine(Toy())
    waiting = [engine.errands.add(lambda: None) for _ in range(2)]
    engine.close()
    for future in waiting:
        with pytest.raises(Cancelled):
            future.result(timeout=0)
    with pytest.raises(Cancelled):
        engine.errands.add(lambda: None)
    assert not engine.busy
