"""Several drafters, the first draft of which counts."""

import pytest
from oracles import Oracle, naive
from toy import Toy

from dflash.decode.drafters.first_of import FirstOf
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafters.suffix import SuffixDecoding
from dflash.decode.drafting.draft import EMPTY
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.errors import RequestError

PROMPT = [7, 7, 2, 11]


def oracle(toy, kind="right", **settings):
    return Oracle(((*PROMPT, *naive(toy, PROMPT, Sampling(), 40)),), kind, **settings)


def run(toy, *drafters, n=1, shape=None, **engine):
    strategy = Strategy(FirstOf(*drafters), shape)
    sessions = [Session(PROMPT, strategy=strategy, max_tokens=40, sampling=Sampling(seed=i)) for i in range(n)]
    list(Engine(toy, chunk=2, **engine).run(sessions))
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


class EverySecond(Oracle):
    """Knows the text, and has a draft at every second position."""

    def propose(self, drafter_states, max_drafts):
        drafts = super().propose(drafter_states, max_drafts)
        even = [len(each.session.token_ids) % 2 == 0 for each in drafter_states]
        return [draft if has else EMPTY for draft, has in zip(drafts, even, strict=True)]


@pytest.mark.parametrize("shape", [None, Chain(9), Tree(6)], ids=str)
@pytest.mark.parametrize("draft_budget", [False, True], ids=["", "with a draft budget"])
def test_no_part_drafts_more_than_its_limit(shape, draft_budget):
    """With a draft budget and without, in any shape around; each reaches its limit, and the text is plain decoding's."""
    toy, limits = Toy(), {"EverySecond": 5, "Oracle": 2}
    knows = EverySecond(oracle(toy).texts, "right")
    for session in run(
        toy, Strategy(knows, Chain(5)), Strategy(oracle(toy), Chain(2)), n=3, shape=shape, draft_budget=draft_budget
    ):
        assert session.output_ids == naive(toy, PROMPT, Sampling(), 40)
        longest = {by: max((step.drafted for step in session.steps if step.by == by), default=0) for by in limits}
        assert all(longest[by] <= limit for by, limit in limits.items())
        if not draft_budget:
            assert longest == limits
    assert toy.leaked == (0, 0, 0)


def test_the_state_of_each_part_has_the_shape_of_its_limit():
    """Drafts that begin on the device before `propose` have the size of the shape."""
    drafter = FirstOf(SuffixDecoding(), Strategy(PromptLookup(), Chain(3)))
    for around, inner in ((None, Chain(3)), (Chain(2), Chain(2)), (Tree(9), Chain(3))):
        state = drafter.start(Session(PROMPT, strategy=Strategy(drafter, around)), None)
        assert [part.shape for part in state.parts] == [around, inner]
        state.set_shape(Chain(1))
        assert [part.shape for part in state.parts] == [Chain(1)] * 2


def test_limits_are_part_of_a_drafters_equality():
    assert FirstOf(PromptLookup(), "mtp:3") == FirstOf(PromptLookup(), "mtp:3") != FirstOf(PromptLookup(), "mtp:2")
    assert FirstOf(PromptLookup(), "mtp:3") != FirstOf(PromptLookup(), "mtp")
    assert repr(FirstOf(PromptLookup(), "mtp:3")) == "FirstOf(PromptLookup(), Strategy(MTP(), shape=Chain(3)))"
