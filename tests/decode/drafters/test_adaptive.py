"""Choosing who guesses, by a clock that only models and drafters move."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from guessers import naive
from toy import Toy

from dflash.decode.draft import Draft
from dflash.decode.drafter import Drafter
from dflash.decode.drafters.adaptive import Adaptive
from dflash.decode.drafters.lookup import PromptLookup
from dflash.decode.engine import Engine
from dflash.decode.recoveries.loop import LoopGuard
from dflash.decode.sampling import Sampling
from dflash.decode.session import Session
from dflash.decode.shapes import Chain, Tree
from dflash.decode.strategy import Plain, Strategy
from dflash.errors import RequestError

N, TEXTS = 80, 18
ROWS = (1, 2, 4, 8, 16, 32, 64)
FLAT = (8.0, 8.1, 8.2, 8.4, 8.8, 11.0, 16.0)
"""Milliseconds of a forward where memory is the limit, as on a GPU."""
STEEP = (8.5, 10.0, 13.0, 17.0, 25.0, 40.0, 75.0)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("dflash.decode.engine.perf_counter", clock)
    monkeypatch.setattr("dflash.decode.drafters.pace.perf_counter", clock)
    return clock


class Timed(Toy):
    """A forward takes what the curve says, give or take."""

    device = "cpu"

    def __init__(self, clock, curve):
        super().__init__(slots=4)
        self.clock, self.curve, self.companions = clock, curve, {}
        self.rng = np.random.default_rng(3)

    def forward(self, spans, *, capture=()):
        rows = sum(len(span.tokens) for span in spans)
        self.clock.now += 1e-3 * np.interp(rows, ROWS, self.curve) * np.exp(self.rng.normal(0, 0.05))
        return super().forward(spans, capture=capture)

    def finish(self):
        pass


@dataclass(frozen=True)
class Paced(Drafter):
    """Each guess is right with probability `p` if those before it are; guessing takes ``base + each n`` milliseconds."""

    p: float
    base: float
    each: float
    most: int = 15

    def start(self, session, model, snapshot=None):
        return _Paced(self, session, model)

    def propose(self, draftings, rooms):
        drafts = [drafting.guess(room) for drafting, room in zip(draftings, rooms, strict=True)]
        draftings[0].model.clock.now += 1e-3 * (self.base + self.each * max(map(len, drafts)))
        return drafts


class _Paced:
    capture = ()

    def __init__(self, drafter, session, model):
        self.drafter, self.session, self.model = drafter, session, model
        self.shape = session.strategy.shape or Chain()

    def guess(self, room):
        n, _ = self.shape.wants(self.drafter.most, room)
        text, start = written(*self.session.text[:3]), len(self.session.text)
        right = np.random.default_rng([start, *text[:2]]).random(n) < self.drafter.p
        return Draft([(token + 1 - sure) % 13 for token, sure in zip(text[start : start + n], right, strict=True)])

    def observe(self, out, rows):
        pass

    def snapshot(self):
        pass

    def close(self):
        pass


@cache
def written(*prompt):
    """A prompt, and what comes of it, with a little more than is asked for."""
    return [*prompt, *naive(Toy(), prompt, Sampling(), N + 20)]


def rate(clock, curve, strategy, n_together=1):
    """Tokens a second over some texts, the first of which only warm up."""
    model = Timed(clock, curve)
    engine, spent, tokens = Engine(model), 0.0, 0
    for start in range(0, TEXTS, n_together):
        prompts = [[i % 13, i // 13, 4] for i in range(start, min(start + n_together, TEXTS))]
        sessions = [Session(prompt, strategy=strategy, max_tokens=N) for prompt in prompts]
        began = clock.now
        for _ in engine.run(sessions):
            pass
        for session, prompt in zip(sessions, prompts, strict=True):
            assert session.text == written(*prompt)[: 3 + N]
        if start >= 5:
            spent, tokens = spent + clock.now - began, tokens + N * len(sessions)
    assert model.leaked == (0, 0, 0)
    return tokens / spent


GOOD, WEAK, CHEAP, USELESS = Paced(0.9, 5.5, 0.2), Paced(0.5, 5.5, 0.2), Paced(0.75, 0.2, 1.3, 6), Paced(0.05, 3.0, 0.5)


@pytest.mark.parametrize("curve", [FLAT, STEEP], ids=["flat", "steep"])
@pytest.mark.parametrize("drafters", [(GOOD,), (USELESS,), (CHEAP, WEAK)], ids=str)
def test_never_much_slower_than_the_best(clock, curve, drafters):
    fixed = [rate(clock, curve, Strategy(each, Chain(n))) for each in drafters for n in (1, 2, 4, 8, 15)]
    plain, found = rate(clock, curve, Plain()), rate(clock, curve, Strategy(Adaptive(*drafters)))
    assert found > 0.95 * plain
    assert found > 0.9 * max(fixed)


def test_several_sessions_share_a_forward(clock):
    """Rows are dearer there, so that less is worth guessing."""
    for curve in (FLAT, STEEP):
        plain, found = (rate(clock, curve, strategy, 4) for strategy in (Plain(), Strategy(Adaptive(GOOD, CHEAP))))
        assert found > 0.95 * plain


def test_what_costs_no_time_is_looked_at_first(clock):
    model = Timed(clock, STEEP)
    session = Session([1, 2, 3] * 8, strategy=Strategy(Adaptive(PromptLookup(), USELESS)), max_tokens=N)
    for _ in Engine(model).stream(session):
        pass
    assert session.tokens == naive(model, [1, 2, 3] * 8, Sampling(), N)
    assert {step.by for step in session.steps} >= {"", "PromptLookup"}


def test_the_shape_is_the_limit(clock):
    model = Timed(clock, FLAT)
    for shape, most in ((Chain(3), 3), (Tree(5), 5)):
        session = Session([1, 2], strategy=Strategy(Adaptive(Strategy(GOOD, shape))), max_tokens=N)
        for _ in Engine(model).stream(session):
            pass
        assert max(step.drafted for step in session.steps) == most


def test_as_a_value():
    one = Adaptive(PromptLookup(), Strategy(GOOD, Tree(8)))
    assert one == Adaptive(PromptLookup(), Strategy(GOOD, Tree(8))) != Adaptive(PromptLookup())
    assert len({one, Adaptive(PromptLookup(), Strategy(GOOD, Tree(8)))}) == 1
    assert repr(one).startswith("Adaptive(PromptLookup(")
    assert repr(one).endswith("shape=Tree(8)))")
    with pytest.raises(RequestError, match="they go around"):
        Adaptive(PromptLookup() | LoopGuard())
