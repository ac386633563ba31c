"""Whatever the times of steps make a draft budget choose, the tokens stay the same."""

from types import SimpleNamespace

import numpy as np
import pytest
from ahead_toy import AheadToy
from oracles import DraftingState, Oracle, naive
from toy import Toy

from dflash.decode import engine as engine_module
from dflash.decode.drafting.draft import Draft
from dflash.decode.drafting.drafter import Drafter, DraftPlan, Nothing, Plain, Strategy
from dflash.decode.drafting.shapes import Tree
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session

SAMPLINGS = [Sampling(), Sampling(temperature=0.8, top_k=8, seed=3), Sampling(repetition_penalty=1.3)]


@pytest.fixture
def random_times(monkeypatch):
    """Let every step take another time, so that the choice changes all the time."""
    rng, clock = np.random.default_rng(5), SimpleNamespace(now=0.0)

    def now():
        clock.now += rng.exponential() ** 3
        return clock.now

    monkeypatch.setattr(engine_module, "perf_counter", now)


def run(engine, sessions):
    list(engine.run(sessions))


@pytest.mark.parametrize("kind", ["chain", "tree"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "T 0.8", "penalty"])
def test_same_tokens_with_and_without_a_budget(random_times, kind, sampling):
    toy, sessions = Toy(), []
    for i in range(5):
        prompt = [1 + i, 2, 5]
        truth = naive(toy, prompt, sampling, 60, seed=sampling.seed)
        strategy = Strategy(Oracle(((*prompt, *truth),), kind), Tree(12) if kind == "tree" else None)
        sessions.append(Session(prompt, sampling=sampling, strategy=Plain() if i == 4 else strategy, max_tokens=60))
    run(Engine(toy, draft_budget=True), sessions)
    for session in sessions:
        assert session.output_ids == naive(toy, session.prompt_ids, sampling, 60, seed=sampling.seed)
    sizes = {step.drafted for session in sessions for step in session.steps if step.tokens}
    assert len(sizes) > 3, "the budget chose different sizes"
    assert toy.leaked == (0, 0, 0)


class Ahead(Drafter):
    """A drafter that a device could begin to run; right in every other token, and slow."""

    def __init__(self, clock=None):
        self.clock, self.launched = clock, 0

    def start(self, session, model, snapshot=None):
        return DraftingState(self, session)

    def propose(self, drafter_states, max_drafts):
        if self.clock:
            self.clock.now += 10.0
        return [Draft([1] * min(n, 3)) for n in max_drafts]

    def plan_next(self, drafter_states, drafts):
        return [DraftPlan(self, drafter_state.session) for drafter_state in drafter_states]

    def launch_ahead(self, requests, order, taken):
        assert len(requests) == len(order)
        self.launched += 1


def test_sessions_without_drafts_are_overlapped_like_plain_ones(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(engine_module, "perf_counter", lambda: clock.now)
    toy, drafter = AheadToy(), Ahead(clock)

    def forward(spans):
        clock.now += 1.0

    toy.before_forward, ahead = forward, toy.forward_overlapped
    toy.forward_overlapped = lambda spans, capture=(): forward(spans) or ahead(spans, capture=capture)
    sessions = [Session([i + 1], max_tokens=60, strategy=Strategy(drafter)) for i in range(3)]
    run(Engine(toy, draft_budget=True), sessions)
    assert [session.output_ids for session in sessions] == [naive(toy, [i + 1], Sampling(), 60) for i in range(3)]
    assert toy.ahead > 45
    assert 1 <= sum(step.drafted > 0 for step in sessions[0].steps) <= 6, "tried, and left again"
    assert toy.leaked == (0, 0, 0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_same_tokens_with_overlapped_steps(random_times, device):
    toy, drafters = AheadToy(), (Ahead(), Ahead(), Nothing())
    toy.device = device
    sessions = [Session([i + 1], max_tokens=60 + 7 * i, strategy=Strategy(drafters[i % 3])) for i in range(7)]
    run(Engine(toy, draft_budget=True), sessions)
    for session in sessions:
        assert session.output_ids == naive(toy, session.prompt_ids, Sampling(), session.max_tokens)
    assert toy.ahead and drafters[0].launched
    assert toy.leaked == (0, 0, 0)
