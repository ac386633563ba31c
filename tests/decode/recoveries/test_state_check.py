"""Mistakes in a new recovery: one sentence names them, and the engine goes on."""

from dataclasses import dataclass

import pytest
from toy import Toy, finish

from dflash.decode.drafting.drafter import Strategy
from dflash.decode.engine import Engine
from dflash.decode.recoveries.base import PASS
from dflash.decode.session import Session
from dflash.errors import DFlashError


class Returns:
    """A state that gives one verdict, or what its author mistook for one."""

    name, restarts = "Returns", False

    def __init__(self, verdict):
        self.verdict = verdict

    def check_step(self, session, accepted):
        return self.verdict


class WithoutMembers:
    name = "WithoutMembers"


@dataclass(frozen=True)
class Starts:
    """Returns a state, or what its author mistook for one."""

    state: object

    def start(self, session):
        return self.state


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            WithoutMembers(),
            "Starts.start: must return a RecoveryState or None, got WithoutMembers without restarts, check_step$",
        ),
        (Returns(None), "Returns.check_step: must return PASS, HOLD, DONE, Cut, Inject or Restart, got None$"),
        (Returns(True), "Returns.check_step: must return PASS, .* got True$"),
    ],
)
def test_a_mistake_is_named_and_ends_one_session(state, message):
    toy = Toy()
    engine = Engine(toy)
    sound = engine.add(Session([1, 2, 3], max_tokens=4, strategy=Strategy() | Starts(Returns(PASS))))
    idle = engine.add(Session([1, 2, 3], max_tokens=4, strategy=Strategy() | Starts(None)))
    broken = engine.add(Session([1, 2, 3], max_tokens=4, strategy=Strategy() | Starts(state)))
    finish(engine)
    assert sound.finish_reason == idle.finish_reason == "length"
    assert broken.finish_reason == "error"
    with pytest.raises(DFlashError, match=message):
        raise broken.error
    assert toy.leaked == (0, 0, 0)
