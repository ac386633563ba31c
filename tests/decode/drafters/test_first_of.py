"""Several drafters, the first draft of which counts."""

import pytest
from oracles import Oracle, naive
from toy import Toy

from dflash.decode.drafters.first_of import FirstOf
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.errors import RequestError

PROMPT = [7, 7, 2, 11]


def oracle(toy, kind="right", **settings):
    return Oracle(((*PROMPT, *naive(toy, PROMPT, Sampling(), 40)),), kind, **settings)


def run(toy, *drafters, n=1):
    sessions = [Session(PROMPT, strategy=Strategy(FirstOf(*drafters)), max_tokens=40) for _ in range(n)]
    for _ in Engine(toy, chunk=2).run(sessions):
        pass
    for session in sessions:
        if session.error is not None:
            raise session.error
    return sessions


def test_the_first_that_has_a_draft():
    toy = Toy()
    truth = naive(toy, PROMPT, Sampling(), 40)
    knows, errs = oracle(toy), oracle(toy, "wrong")
    # each oracle asserts that it has seen every row there is
    for session in run(toy, knows, errs, n=2):
        assert session.output_ids == truth
        assert session.n_drafted > 0
    asked = [session.n_accepted for session in run(toy, PromptLookup(min_ngram=8), errs, knows)]
    assert asked[0] < run(toy, knows)[0].n_accepted
    assert run(toy, PromptLookup(min_ngram=8))[0].output_ids == truth
    assert toy.leaked == (0, 0, 0)


def test_captures_are_united():
    toy = Toy()
    session = Session(PROMPT)
    drafter_state = FirstOf(PromptLookup(), oracle(toy)).start(session, toy)
    assert drafter_state.capture == (3,)
    drafter_state.close()


class Fragile(Oracle):
    def start(self, session, model, snapshot=None):
        raise RequestError("no")


class Counted(PromptLookup):
    closed = 0

    def start(self, session, model, snapshot=None):
        drafter_state = super().start(session, model, snapshot)

        def close():
            Counted.closed += 1

        drafter_state.close = close
        return drafter_state


def test_one_that_does_not_start_lets_go_of_the_others():
    Counted.closed = 0
    with pytest.raises(RequestError):
        FirstOf(Counted(), Fragile(())).start(Session(PROMPT), None)
    assert Counted.closed == 1


class Memory:
    def __init__(self):
        self.closed = 0

    def close(self):
        self.closed += 1


GIVEN = []


class Remembers(PromptLookup):
    def start(self, session, model, snapshot=None):
        GIVEN.append(snapshot)
        drafter_state = super().start(session, model)
        drafter_state.snapshot = Memory
        return drafter_state


def test_each_gets_its_own_snapshot_back():
    drafter = FirstOf(PromptLookup(), Remembers(min_ngram=3))
    drafter_state = drafter.start(Session(PROMPT), None)
    snapshot = drafter_state.snapshot()
    drafter.start(Session(PROMPT), None, snapshot)
    assert [None, snapshot.parts[1]] == GIVEN
    memory = snapshot.parts[1]
    snapshot.close()
    assert memory.closed == 1


def test_drafters_compare_by_their_parts():
    one = FirstOf(PromptLookup(), PromptLookup(max_ngram=9))
    assert one == FirstOf(PromptLookup(), PromptLookup(max_ngram=9)) != FirstOf(PromptLookup())
    assert hash(one) == hash(FirstOf(PromptLookup(), PromptLookup(max_ngram=9)))
    assert repr(one) == "FirstOf(PromptLookup(), PromptLookup(9))"
    with pytest.raises(RequestError, match="at least one"):
        FirstOf()
