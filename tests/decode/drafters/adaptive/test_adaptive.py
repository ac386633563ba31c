"""Choosing which drafter proposes, by a clock that only models and drafters move."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from ahead_toy import AheadToy
from oracles import naive
from paced import CHEAP, FLAT, GOOD, STEEP, USELESS, WEAK, N, Paced, Timed, written

from dflash.decode.drafters.adaptive import measuring
from dflash.decode.drafters.adaptive.drafter import Adaptive
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.drafter import DraftPlan, Plain, Strategy
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.engine import Engine
from dflash.decode.recoveries.loop_guard import LoopGuard
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.errors import RequestError

TEXTS = 18
FAIR, SLOW = Paced(0.6, 2.0, 0.5), Paced(0.45, 1.0, 1.5, 6)


def rate(clock, curve, strategy, n_together=1):
    """Tokens a second over some texts, the first of which only warm up."""
    model = Timed(clock, curve)
    engine, spent, tokens = Engine(model), 0.0, 0
    for start in range(0, TEXTS, n_together):
        prompts = [[i % 13, i // 13, 4] for i in range(start, min(start + n_together, TEXTS))]
        sessions = [Session(prompt, strategy=strategy, max_tokens=N) for prompt in prompts]
        began = clock.now
        list(engine.run(sessions))
        for session, prompt in zip(sessions, prompts, strict=True):
            assert session.token_ids == written(*prompt)[: 3 + N]
        if start >= 5:
            spent, tokens = spent + clock.now - began, tokens + N * len(sessions)
    assert model.leaked == (0, 0, 0)
    return tokens / spent


@pytest.mark.parametrize("curve", [FLAT, STEEP], ids=["flat", "steep"])
@pytest.mark.parametrize("drafters", [(GOOD,), (USELESS,), (CHEAP, WEAK), (FAIR, SLOW)], ids=str)
def test_never_much_slower_than_the_best(clock, curve, drafters):
    fixed = [rate(clock, curve, Strategy(each, Chain(n))) for each in drafters for n in (1, 2, 4, 8, 15)]
    plain, found = rate(clock, curve, Plain()), rate(clock, curve, Strategy(Adaptive(*drafters)))
    assert found > 0.95 * plain
    assert found > 0.94 * max(fixed)


def test_only_what_the_drafter_is_sure_of_is_verified(clock):
    says = Paced(0.7, 3.0, 0.2, says=True)
    fixed = max(rate(clock, STEEP, Strategy(says, Chain(n))) for n in (1, 2, 4, 8))
    assert rate(clock, STEEP, Strategy(Adaptive(says))) > 1.1 * fixed


def test_a_useless_drafter_is_seldom_used(clock):
    """Nor is the text's ease taken from it: the good one is found all the same."""
    best = max(rate(clock, STEEP, Strategy(GOOD, Chain(n))) for n in (4, 8, 15))
    assert rate(clock, STEEP, Strategy(Adaptive(USELESS, GOOD))) > 0.95 * best


@pytest.mark.parametrize("curve", [FLAT, STEEP], ids=["flat", "steep"])
def test_a_drafter_measured_beside_other_work_is_tried(clock, curve, monkeypatch):
    measure = measuring.measure

    def disturbed(option, *rest):
        yield from measure(option, *rest)
        if option.drafter is GOOD:
            option.extra = [2 * ms for ms in option.extra]

    monkeypatch.setattr(measuring, "measure", disturbed)
    best = max(rate(clock, curve, Strategy(GOOD, Chain(n))) for n in (4, 8, 15))
    assert rate(clock, curve, Strategy(Adaptive(CHEAP, GOOD))) > 0.95 * best


@dataclass(frozen=True)
class BeginsBadly(Paced):
    """Its draft tokens are wrong at these places of texts, each known by its first token and its length."""

    where: tuple = ()

    def propose(self, drafter_states, max_drafts):
        drafts = super().propose(drafter_states, max_drafts)
        for drafter_state, draft in zip(drafter_states, drafts, strict=True):
            if (drafter_state.session.prompt_array[0], len(drafter_state.session.token_ids)) in self.where:
                draft.tokens[:] = (draft.tokens + 1) % 13
        return drafts


def test_an_unlucky_start_does_not_rule_out_the_better_one(clock):
    other, shares = Paced(0.95, 0.2, 2.3, 6), []
    for where in ([(0, 3)], [(0, 3), (1, 3)], [(0, 3), (2, 3)], [(0, 4)], [(0, 3), (1, 3), (2, 3)]):
        better = BeginsBadly(0.95, 3.6, 0.55, where=tuple(where))
        alone = rate(clock, STEEP, Strategy(better, Chain(7)))
        shares.append(rate(clock, STEEP, Strategy(Adaptive(other, better))) / alone)
    assert np.mean(shares) > 0.95


@dataclass(frozen=True)
class Ripens(Paced):
    """Its draft tokens are seldom right in the first texts."""

    def start(self, session, model, snapshot=None):
        found = super().start(session, model)
        found.drafter = GOOD if session.prompt_array[0] >= 8 else self
        return found


@pytest.mark.parametrize("curve", [FLAT, STEEP], ids=["flat", "steep"])
def test_a_useless_drafter_is_tried_again(clock, curve):
    model, strategy, found = Timed(clock, curve), Strategy(Adaptive(Ripens(0.05, 5.5, 0.2))), []
    for start in range(13):
        session = Session([start, 2, 3], strategy=strategy, max_tokens=N)
        for _ in Engine(model).stream(session):
            pass
        found.append(session.n_tokens / len(session.steps))
    assert max(found[1:8]) < 1.3
    assert min(found[11:]) > 4


def test_several_sessions_share_a_forward(clock):
    """Rows are dearer there, so that less is worth drafting."""
    for curve in (FLAT, STEEP):
        plain, found = (rate(clock, curve, strategy, 4) for strategy in (Plain(), Strategy(Adaptive(GOOD, CHEAP))))
        assert found > 0.95 * plain


def test_what_costs_no_time_is_looked_at_first(clock):
    model = Timed(clock, STEEP)
    session = Session([1, 2, 3] * 8, strategy=Strategy(Adaptive(PromptLookup(), USELESS)), max_tokens=N)
    for _ in Engine(model).stream(session):
        pass
    assert session.output_ids == naive(model, [1, 2, 3] * 8, Sampling(), N)
    assert {step.by for step in session.steps} >= {"", "PromptLookup"}


def verified(clock, text):
    """How much of what was found was verified, step by step, and how much of it was right."""
    model = Timed(clock, STEEP)
    model.law = lambda seen: np.eye(model.n_vocab, dtype=np.float32)[text[len(seen)]]
    session = Session(text[:80], strategy=Strategy(Adaptive(PromptLookup(n_draft=15))), max_tokens=N)
    for _ in Engine(model).stream(session):
        pass
    assert session.token_ids == text[: 80 + N]
    return [(step.drafted, step.accepted) for step in session.steps if step.by]


def test_what_was_found_is_verified_as_far_as_it_proved_right(clock):
    rng = np.random.default_rng(5)
    run = rng.integers(0, 6, 60).tolist()
    assert max(n for n, _ in verified(clock, run * 4)) == 15
    misleading = run + [token for _ in range(20) for token in (*run[30:38], *rng.integers(6, 13, 4).tolist())]
    assert np.median([n for n, _ in verified(clock, misleading)]) <= 8


class TimedAhead(Timed, AheadToy):
    """Begins with what is foreseen of the next step."""


@dataclass(frozen=True)
class Foresees(Paced):
    """A drafter on a device, which gets the size of the next draft one step early."""

    followed: list = field(default_factory=list, compare=False)

    def plan_next(self, drafter_states, drafts):
        return [DraftPlan(self, (drafter_state, drafter_state.shape.depth)) for drafter_state in drafter_states]

    def launch_ahead(self, wishes, order, taken):
        self.followed.append(dict(wishes))

    def propose(self, drafter_states, max_drafts):
        if self.followed:
            wanted, self.followed[-1] = self.followed[-1], {}
            assert all(drafter_state.shape.depth <= wanted.get(drafter_state, 15) for drafter_state in drafter_states)
        return super().propose(drafter_states, max_drafts)


@pytest.mark.parametrize("n_together", [1, 2])
@pytest.mark.parametrize("p", [0.9, 0.05])
def test_what_is_foreseen_is_done(clock, p, n_together):
    """A step that is foreseen asks whom it was said to ask; plain ones are launched ahead."""
    model, drafter = TimedAhead(clock, STEEP), Foresees(p, 3.0, 0.2)
    prompts = [[i, 2, 3] for i in range(n_together)]
    strategy = Strategy(Adaptive(PromptLookup(), drafter))
    sessions = [Session(prompt, strategy=strategy, max_tokens=N) for prompt in prompts]
    list(Engine(model).run(sessions))
    for session, prompt in zip(sessions, prompts, strict=True):
        assert session.token_ids == written(*prompt)[: 3 + N]
    assert len(drafter.followed) > 5 if p > 0.5 else model.ahead > N / 3
    assert model.leaked == (0, 0, 0)


def test_the_shape_is_the_limit(clock):
    model = Timed(clock, FLAT)
    for shape, most in ((Chain(3), 3), (Tree(5), 5)):
        session = Session([1, 2], strategy=Strategy(Adaptive(Strategy(GOOD, shape))), max_tokens=N)
        for _ in Engine(model).stream(session):
            pass
        assert max(step.drafted for step in session.steps) == most


def test_with_nothing_to_choose_from_it_is_plain(clock):
    session = Session([1, 2], strategy=Strategy(Adaptive(Plain())), max_tokens=N)
    for _ in Engine(Timed(clock, FLAT)).stream(session):
        pass
    assert session.token_ids == written(1, 2)[: 2 + N]
    assert not any(step.drafted for step in session.steps)


def test_as_a_value():
    one = Adaptive(PromptLookup(), Strategy(GOOD, Tree(8)))
    assert one == Adaptive(PromptLookup(), Strategy(GOOD, Tree(8))) != Adaptive(PromptLookup())
    assert len({one, Adaptive(PromptLookup(), Strategy(GOOD, Tree(8)))}) == 1
    assert repr(one).startswith("Adaptive(PromptLookup(")
    assert repr(one).endswith("shape=Tree(8)))")
    with pytest.raises(RequestError, match="they go around"):
        Adaptive(PromptLookup() | LoopGuard())
