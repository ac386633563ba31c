"""How long steps take, by a clock of the test's own."""

import pytest
from paced import FLAT, GOOD, STEEP, Timed

from dflash.decode.drafters.pace import Extra, Forwards, measured_extra
from dflash.decode.shapes import Chain
from dflash.decode.strategy import Strategy


@pytest.mark.parametrize("curve", [FLAT, STEEP], ids=["flat", "steep"])
def test_forwards_are_measured_then_followed(clock, curve):
    forwards = Forwards(Timed(clock, curve))
    for rows, milliseconds in ((1, curve[0]), (4, curve[2]), (16, curve[4]), (64, curve[6]), (128, 2 * curve[6])):
        assert forwards.seconds(rows) == pytest.approx(1e-3 * milliseconds, rel=0.15)
    times = [forwards.seconds(rows / 4) for rows in range(4, 300)]
    assert times == sorted(times)
    for _ in range(100):
        forwards.learn(8, 0.05)
    assert forwards.seconds(8) == pytest.approx(0.05, rel=0.01)


def test_other_work_slows_down_all_alike(clock):
    forwards = Forwards(Timed(clock, STEEP))
    before = [forwards.seconds(rows) for rows in (2, 8, 30)]
    for _ in range(30):
        forwards.learn(1, 3e-3 * STEEP[0])
    assert [forwards.seconds(rows) for rows in (2, 8, 30)] == pytest.approx([3 * each for each in before], rel=0.25)


def test_drafts_are_measured_small_and_large_then_followed(clock):
    model = Timed(clock, STEEP)
    shapes = [Strategy(GOOD, Chain(n)) for n in (1, GOOD.most)]
    extra = measured_extra(model, shapes)
    assert model.leaked == (0, 0, 0)
    for n in (1, 4, 15):
        assert extra.seconds(n) == pytest.approx(1e-3 * (GOOD.base + GOOD.each * n), rel=0.01)
    for _ in range(60):
        extra.learn(4, 2 * 1e-3 * (GOOD.base + GOOD.each * 4))
    assert extra.seconds(15) == pytest.approx(2 * 1e-3 * (GOOD.base + GOOD.each * 15), rel=0.02)


def test_of_what_was_not_measured_the_first_step_tells():
    extra = Extra()
    assert extra.seconds(7) == 0
    extra.learn(7, 0.004)
    assert extra.seconds(7) == pytest.approx(0.004)
