"""How long steps take, by a clock of the test's own."""

from types import SimpleNamespace

import pytest
from paced import FLAT, GOOD, STEEP, Timed

from dflash.decode.drafters import measuring
from dflash.decode.drafters.adaptive.latency import DraftLatency
from dflash.decode.drafters.measuring import finished, measured_extra, measured_forwards
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain


@pytest.mark.parametrize("curve", [FLAT, STEEP], ids=["flat", "steep"])
def test_forwards_are_measured_then_followed(clock, curve):
    forwards = finished(measured_forwards(Timed(clock, curve)))
    for rows, milliseconds in ((1, curve[0]), (4, curve[2]), (16, curve[4]), (64, curve[6]), (128, 2 * curve[6])):
        assert forwards.seconds(rows) == pytest.approx(1e-3 * milliseconds, rel=0.15)
    times = [forwards.seconds(rows / 4) for rows in range(4, 300)]
    assert times == sorted(times)
    for _ in range(100):
        forwards.learn(8, 0.05)
    assert forwards.seconds(8) == pytest.approx(0.05, rel=0.01)


def test_other_work_slows_down_all_alike(clock):
    forwards = finished(measured_forwards(Timed(clock, STEEP)))
    before = [forwards.seconds(rows) for rows in (2, 8, 30)]
    for _ in range(30):
        forwards.learn(1, 3e-3 * STEEP[0])
    assert [forwards.seconds(rows) for rows in (2, 8, 30)] == pytest.approx([3 * each for each in before], rel=0.25)


def test_drafts_are_measured_small_and_large_then_followed(clock):
    model = Timed(clock, STEEP)
    shapes = [Strategy(GOOD, Chain(n)) for n in (1, GOOD.most)]
    extra = finished(measured_extra(model, shapes, finished(measured_forwards(model))))
    assert model.leaked == (0, 0, 0)
    for n in (1, 4, 15):
        assert extra.seconds(n) == pytest.approx(1e-3 * (GOOD.base + GOOD.each * n), rel=0.2)
    for _ in range(60):
        extra.learn(4, 2 * 1e-3 * (GOOD.base + GOOD.each * 4))
    assert extra.seconds(15) == pytest.approx(2 * 1e-3 * (GOOD.base + GOOD.each * 15), rel=0.1)


def test_other_work_meets_all_that_is_measured_alike(clock):
    clock.slower = 3.0
    model = Timed(clock, STEEP)
    forwards = finished(measured_forwards(model))
    extra = finished(measured_extra(model, [Strategy(GOOD, Chain(n)) for n in (1, GOOD.most)], forwards))
    for rows, milliseconds in ((4, STEEP[2]), (16, STEEP[4]), (64, STEEP[6])):
        assert forwards.seconds(rows) / forwards.seconds(1) == pytest.approx(milliseconds / STEEP[0], rel=0.2)
    for n in (1, 15):
        assert extra.seconds(n) / forwards.seconds(1) == pytest.approx((GOOD.base + GOOD.each * n) / STEEP[0], rel=0.25)


def test_a_step_that_was_seen_in_part_does_not_make_more_guesses_cheaper(monkeypatch):
    times = {1: 0.008, 3: 0.009, 7: 0.010, 15: 0.001}
    parts = dict.fromkeys(("propose", "verify", "commit"), 0.0)

    def steps(model, strategy):
        n = strategy.shape.depth
        yield
        return [SimpleNamespace(drafted=n, forward=times[n], **parts)]

    monkeypatch.setattr(measuring, "measured_steps", steps)
    strategies = [Strategy(GOOD, Chain(n)) for n in times]
    extra = finished(measured_extra(SimpleNamespace(device="cuda"), strategies, forwards=None))
    assert [extra.seconds(n) for n in (1, 7, 15, 30)] == pytest.approx([0.008, 0.010, 0.010, 0.010])


def test_fewer_guesses_than_were_measured_cost_something():
    assert DraftLatency([(3, 0.001), (7, 0.009)]).seconds(1) == 0.001


def test_of_what_was_not_measured_the_first_step_tells():
    extra = DraftLatency()
    assert extra.seconds(7) == 0
    extra.learn(7, 0.004)
    assert extra.seconds(7) == pytest.approx(0.004)


def test_the_first_steps_correct_a_bad_measure():
    extra = DraftLatency([(1, 0.0056), (15, 0.014)])
    for _ in range(3):
        extra.learn(15, 0.010)
    assert extra.seconds(15) == pytest.approx(0.010, rel=0.12)
    for _ in range(40):
        extra.learn(15, 0.010)
    extra.learn(15, 0.015)
    assert extra.seconds(15) == pytest.approx(0.010, rel=0.06)
