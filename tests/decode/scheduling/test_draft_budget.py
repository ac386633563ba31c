"""Drafts under load: never slower than plain, near the best fixed depth, and never another token."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from costed_toy import CostedToy
from oracles import DraftingState

from dflash.decode import engine as engine_module
from dflash.decode import warmup
from dflash.decode.drafting.draft import Draft
from dflash.decode.drafting.drafter import Drafter, Strategy
from dflash.decode.drafting.shapes import Chain
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.scheduling.step_costs import StepCosts
from dflash.decode.session import Session
from dflash.decode.verifiers import AcceptanceSchedule, SyntheticAcceptance
from dflash.kernels.cpu import warm_marker

ROWS, STEP_MS = [1, 4, 8, 16, 32, 64, 128, 2048], [5.08, 5.4, 5.9, 6.5, 9.5, 16.6, 30.0, 480.0]
"""Forwards of a 27B on an H200 by rows; beyond 128 in proportion."""


@dataclass(frozen=True)
class Timed(Drafter):
    """Drafts zeros in a time of its own: `each` ms for a position, or `once` ms for all of them."""

    most: int
    each: float = 0.0
    once: float = 0.0

    def start(self, session, model, snapshot=None):
        return DraftingState(self, session)

    def propose(self, drafter_states, max_drafts):
        sizes = [min(self.most, n) for n in max_drafts]
        CLOCK.asked += 1
        CLOCK.now += 1e-3 * (self.each * max(sizes) + self.once * (max(sizes) > 0))
        return [Draft([0] * n) for n in sizes]


class Simulated:
    """An engine whose clock advances by what steps of a 27B take; times of steps have a spread of 3 %."""

    def __init__(self, n, *, slower=1.0, device="cpu"):
        self.rng, self.slower = np.random.default_rng(n), slower
        self.toy = CostedToy(pages=4000, slots=n, rows=4096, context=40_000)
        self.toy.device = device
        self.toy.before_forward = self.advance
        self.engine, self.sessions = Engine(self.toy, draft_budget=True), []

    def advance(self, spans):
        rows = sum(len(span.tokens) for span in spans)
        ms = passes_ms(rows) if self.toy.device == "cuda" and rows > len(spans) else np.interp(rows, ROWS, STEP_MS)
        CLOCK.now += 1e-3 * self.slower * ms * (1 + 0.03 * self.rng.standard_normal())

    def add(self, n, drafter, acceptance):
        strategy = Strategy(drafter, Chain(drafter.most), verifier=acceptance)
        new = [Session([1], strategy=strategy, max_tokens=30_000, sampling=Sampling(seed=i)) for i in range(n)]
        self.engine.add_all(new)
        self.sessions += new
        return new

    def rate(self, n_steps):
        """Return tokens a second over some steps."""
        began, before = CLOCK.now, sum(session.n_tokens for session in self.sessions)
        for _ in range(n_steps):
            self.engine.step()
        return (sum(session.n_tokens for session in self.sessions) - before) / (CLOCK.now - began)


def passes_ms(rows):
    """Passes of a GPU hold 64 rows if sequences have several."""
    return rows // 64 * np.interp(64, ROWS, STEP_MS) + (np.interp(rows % 64, ROWS, STEP_MS) if rows % 64 else 0.0)


def fixed_rates(n, acceptance, drafter):
    """Return tokens a second by fixed depth, from 0."""
    depths, shares = np.arange(drafter.most + 1), acceptance.shares(drafter.most)
    ms = np.interp(n * (1 + depths), ROWS, STEP_MS) + drafter.each * depths + drafter.once * (depths > 0)
    return 1e3 * n * np.cumsum([1.0, *shares, *[0.0] * (drafter.most - len(shares))]) / ms


def falling(length):
    """Return an acceptance of equal rates at all positions, for drafts of 15 tokens."""
    rates = np.linspace(0, 1, 10_001)
    rate = rates[np.searchsorted(sum(rates**k for k in range(16)), length)]
    return SyntheticAcceptance(tuple(float(rate**k) for k in range(1, 16)))


CLOCK = SimpleNamespace(now=0.0, asked=0)
MTP = Timed(3, each=0.28)
BLOCK = Timed(15, once=1.5)
GOLDEN = SyntheticAcceptance((0.73, 0.48, 0.31))
"""MTP of a 27B that thinks: 1.73, 2.21 and 2.52 tokens a step."""


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(engine_module, "perf_counter", lambda: CLOCK.now)


@pytest.mark.parametrize(
    ("drafter", "acceptance", "streams"),
    [
        (MTP, GOLDEN, (1, 2, 4, 8, 16, 32, 64, 128)),
        (MTP, SyntheticAcceptance(2.52), (1, 32)),
        (BLOCK, falling(4), (1, 4, 16)),
        (BLOCK, falling(6), (2, 8, 32)),
    ],
    ids=["golden", "one or two", "block, 4", "block, 6"],
)
def test_near_the_best_fixed_depth_and_never_slower_than_plain(drafter, acceptance, streams):
    for n in streams:
        simulated = Simulated(n)
        simulated.add(n, drafter, acceptance)
        simulated.rate(60 if n <= 32 else 30)
        found, fixed = simulated.rate(25 + 240 // n), fixed_rates(n, acceptance, drafter)
        assert found >= 0.97 * (max(fixed) if n <= 16 else fixed[0]), n


@pytest.mark.parametrize("n", [1, 8])
def test_it_follows_the_acceptance(n):
    """Within 300 steps, about two seconds; trials lose 1 % of the time while sessions draft, and 0.3 % while none does."""
    good, bad = falling(6), SyntheticAcceptance((0.1, 0.01))
    simulated = Simulated(n)
    simulated.add(n, BLOCK, good)
    simulated.rate(60)
    for acceptance in (bad, good):
        for session in simulated.sessions:
            session.verifier = AcceptanceSchedule(acceptance, session.seed)
        simulated.rate(300)
        found, fixed = simulated.rate(120), max(fixed_rates(n, acceptance, BLOCK))
        assert found >= 0.95 * fixed


def test_it_follows_the_load():
    simulated = Simulated(48)
    for n in (1, 12, 47):
        new = simulated.add(n, MTP, GOLDEN)
        simulated.rate(60)
        found, fixed = simulated.rate(60), fixed_rates(n, GOLDEN, MTP)
        assert found >= 0.96 * max(fixed), n
        for session in new:
            session.cancel()


def test_sessions_that_accept_more_draft_more():
    simulated, bad, good = Simulated(16), (0.1, 0.01, 0.001), (0.95, 0.9, 0.85)
    few, many = (simulated.add(8, MTP, SyntheticAcceptance(shares)) for shares in (bad, good))
    simulated.rate(120)
    before = [sum(session.n_drafted for session in group) for group in (few, many)]
    found, fixed = simulated.rate(60), fixed_rates(16, SyntheticAcceptance((0.525, 0.455, 0.4255)), MTP)
    n_few, n_many = (sum(each.n_drafted for each in group) - n for group, n in zip((few, many), before, strict=True))
    assert n_many > 5 * n_few
    assert found > 1.1 * max(fixed), "no depth for all is as good"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("n", [64, 128])
def test_where_drafts_do_not_pay_no_drafter_is_asked(n, device):
    """Not even as a trial, where no acceptance would make them pay: throughput is that of plain decoding."""
    simulated = Simulated(n, device=device)
    simulated.add(n, MTP, GOLDEN)
    simulated.rate(60)
    CLOCK.asked = 0
    assert simulated.rate(200) >= 0.99 * fixed_rates(n, GOLDEN, MTP)[0]
    assert CLOCK.asked <= (16 if device == "cpu" else 0)


@pytest.mark.parametrize("n", [8, 32, 64, 128])
def test_on_a_gpu_the_start_learns_what_rows_cost(n, monkeypatch):
    """So that the first steps at a load are no slower than plain ones by what trying drafts costs."""
    monkeypatch.setattr(warmup, "perf_counter", lambda: CLOCK.now)
    monkeypatch.setattr(warm_marker, "is_known", lambda _: True)
    simulated = Simulated(n)
    simulated.toy.device, simulated.toy.warm = "cuda", lambda: None
    warmup.warm(simulated.engine, "a kind", lambda _: None)
    simulated.add(n, MTP, GOLDEN)
    assert simulated.rate(60) >= 0.92 * max(fixed_rates(n, GOLDEN, MTP))


@pytest.mark.parametrize(("length", "n"), [(4, 8), (4, 32), (6, 16), (6, 32)])
def test_first_steps_of_large_drafts_cost_little(length, n):
    """Forwards of more rows than were measured are expected to take longer."""
    simulated, acceptance = Simulated(n), falling(length)
    simulated.add(n, BLOCK, acceptance)
    assert simulated.rate(60) >= 0.9 * max(fixed_rates(n, acceptance, BLOCK))


def test_on_a_gpu_draft_rows_beyond_a_pass_cost_more_passes():
    """Passes of one row for each sequence hold 128 rows and cost less; their seconds say nothing about drafts."""
    costs = StepCosts(on_gpu=True)
    for _ in range(3):
        costs.observe(64, (), 0.0166)
        costs.observe(64, (), 0.0150, single=True)
        costs.observe(128, (), 0.030, single=True)
    assert costs.plain(64) == pytest.approx(0.0150, rel=0.01)
    assert costs.plain(128) == pytest.approx(0.030, rel=0.01)
    assert costs.forwards(np.array([64, 128, 256])) == pytest.approx([0.0166, 2 * 0.0166, 4 * 0.0166])
    for _ in range(3):
        costs.observe(128, (("head", 64, 1),), 0.036)
    assert costs.forwards(np.array([128]))[0] > 0.032
    assert costs.plain(128) == pytest.approx(0.030, rel=0.01)


def test_on_a_gpu_unknown_drafts_cost_at_least_the_time_of_the_host():
    """A step with drafts is not launched ahead, so the device waits for what the host does in a step."""
    costs, depths = StepCosts(on_gpu=True), np.array([0, 1, 3])
    for seconds in (0.010, 0.012):
        costs.observe(32, (), seconds, single=True)
        costs.learn_host(32, 0.0015)
    assert costs.drafting("head", 32, depths) == pytest.approx([0, 0.0015, 0.0015])
    for _ in range(3):
        costs.observe(64, (("head", 32, 1),), 0.011)
    assert costs.drafting("head", 32, depths)[1] < 0.0015


def test_unknown_drafts_of_many_sessions_take_more_passes():
    class FourAtOnce:
        per_pass = 4

    costs, drafter = StepCosts(on_gpu=True), FourAtOnce()
    for _ in range(3):
        costs.observe(4, (), 0.005)
        costs.observe(8, ((drafter, 4, 1),), 0.008)
    known = costs.drafting(drafter, 4, np.array([1]))[0]
    assert known > 0
    assert costs.drafting(drafter, 32, np.array([0, 1])) == pytest.approx([0, 8 * known])
    costs.learn_host(32, 2 * known)
    assert costs.drafting(drafter, 32, np.array([1])) == pytest.approx([16 * known])
    assert costs.drafting("a head", 32, np.array([1])) == pytest.approx([2 * known])
