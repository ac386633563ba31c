"""Mistakes in a new drafter: one sentence names them, and the engine goes on."""

from dataclasses import dataclass, field

import pytest
from toy import Toy, finish

from dflash.decode.drafting.draft import Draft
from dflash.decode.drafting.drafter import Drafter, DrafterState, Strategy
from dflash.decode.engine import Engine
from dflash.decode.session import Session
from dflash.errors import DFlashError, RequestError


class Complete(DrafterState):
    capture = ()

    def __init__(self, draft):
        self.draft = draft

    def propose(self, max_draft):
        return self.draft


class WithoutCapture(DrafterState):
    pass


class NotDerived:
    capture = ()

    def propose(self, max_draft):
        return Draft([1])


@dataclass(frozen=True)
class Starts(Drafter):
    """Returns a state, or what its author mistook for one."""

    state: object

    def start(self, session, model, snapshot=None):
        return self.state


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "Starts.start: must return a DrafterState, got NoneType without capture, observe, close, propose$"),
        (WithoutCapture(), "Starts.start: must return a DrafterState, got .* without capture$"),
        (NotDerived(), "Starts.start: must return a DrafterState, got .* without observe, close$"),
        (Complete([1, 2]), r"propose: must return Draft\(tokens\), got \[1, 2\]"),
        (Complete(None), r"propose: must return Draft\(tokens\), got None"),
    ],
)
def test_a_mistake_is_named_and_ends_one_session(state, message):
    toy = Toy()
    engine = Engine(toy)
    sound = engine.add(Session([1, 2, 3], max_tokens=4, strategy=Strategy(Starts(Complete(Draft([1]))))))
    broken = engine.add(Session([1, 2, 3], max_tokens=4, strategy=Strategy(Starts(state))))
    finish(engine)
    assert sound.finish_reason == "length"
    assert broken.finish_reason == "error"
    with pytest.raises(DFlashError, match=message):
        raise broken.error
    assert toy.leaked == (0, 0, 0)


def test_settings_must_be_hashable():
    @dataclass(frozen=True)
    class Lists(Starts):
        sizes: list = field(default_factory=list)

    with pytest.raises(
        RequestError, match=r"^strategy: a drafter must be a frozen dataclass with hashable fields, got .*Lists"
    ):
        Strategy(Lists(None))
