"""Milliseconds of steps, by a clock of the test's own."""

from types import SimpleNamespace

import pytest
from paced import FLAT, GOOD, STEEP, Timed

from dflash.decode.drafters.adaptive import measuring
from dflash.decode.drafters.adaptive.cost_model import CostModel, Variant
from dflash.decode.drafters.adaptive.measuring import measure, measured_costs, measured_forwards
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain
from dflash.model.attachments import Attachments


def finished(parts):
    """Run all parts and return the result."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("slower", [1.0, 3.0])
@pytest.mark.parametrize("curve", [FLAT, STEEP], ids=["flat", "steep"])
def test_forwards_are_measured_also_beside_other_work(clock, curve, slower):
    clock.slower = slower
    forwards = finished(measured_forwards(Timed(clock, curve)))
    for rows, ms in ((1, curve[0]), (4, curve[2]), (16, curve[4]), (64, curve[6]), (128, 2 * curve[6])):
        assert forwards[rows] == pytest.approx(ms, rel=0.2)
    assert forwards[1:] == sorted(forwards[1:])


def test_a_slow_model_is_measured_a_few_times_only(clock):
    model = Timed(clock, [20 * ms for ms in STEEP])
    forwards = finished(measured_forwards(model))
    assert [forwards[rows] for rows in (1, 4, 64)] == pytest.approx([20 * STEEP[i] for i in (0, 2, 6)], rel=0.2)
    assert len(model.forwards) < 4 * len(measuring.ROWS)
    assert clock.now < 20


@pytest.mark.parametrize("slower", [1.0, 3.0])
def test_drafts_are_measured_small_and_large(clock, slower):
    clock.slower = slower
    model = Timed(clock, STEEP)
    costs = finished(measured_costs([Strategy(GOOD), Strategy(PromptLookup())], model))
    assert model.leaked == (0, 0, 0)
    assert (costs.plain, costs.instant[0].extra[5]) == pytest.approx((0, 0), abs=1e-6)
    for n in (1, 4, 15):
        assert costs.asked[0].extra[n] == pytest.approx(GOOD.base + GOOD.each * n, rel=0.1)


@pytest.mark.parametrize("pending", [5, 16])
def test_forwards_of_more_rows_than_a_sequence_may_have(clock, pending):
    """They are measured with several sequences, as far as there are slots; no draft is larger than what fits."""
    model = Timed(clock, FLAT, pending=pending)
    costs = finished(measured_costs([Strategy(GOOD, Chain(30)), Strategy(GOOD, Chain(9))], model))
    assert [option.most for option in costs.options] == [min(30, pending - 1), min(9, pending - 1)]
    rows = [[n for n, _ in spans] for spans in model.forwards]
    assert max(map(max, rows)) <= pending
    assert max(map(sum, rows)) == max(n for n in measuring.ROWS if n <= model.pools.slots * pending)
    assert costs.forwards[16] == pytest.approx(FLAT[4], rel=0.2)
    assert model.leaked == (0, 0, 0)


def test_a_step_shares_its_forward_with_other_sessions():
    costs = CostModel([Strategy(GOOD, Chain(3))], [10.0 + rows for rows in range(100)], on_host=True)
    option = costs.asked[0]
    option.extra = [1.0, 2.0, 3.0, 4.0]
    assert costs.step_ms(option, 1) == [12.0, 14.0, 16.0, 18.0]
    assert costs.step_ms(option, 21) == [32.0, 34.0, 36.0, 38.0]
    option.pace.learn(1e6, 2e6)
    assert costs.step_ms(option, 1) == pytest.approx([11.5, 13.0, 14.5, 16.0], rel=1e-4)


def on_gpu(monkeypatch, times):
    """Return an option whose whole steps take so long by draft size, where a forward takes nothing."""
    times = dict.fromkeys(range(64), 1.0) | times

    class Steps:
        def __init__(self, model):
            pass

        def run(self, sessions):
            n = sessions[0].strategy.shape.depth
            for _ in range(3):
                parts = {"propose": 0.0, "forward": 1e-3 * times[n], "verify": 0.0, "commit": 0.0}
                yield SimpleNamespace(step=SimpleNamespace(drafted=n, tokens=[1], **parts))

    monkeypatch.setattr(measuring, "Engine", Steps)
    option = Variant(Strategy(GOOD, Chain(20)), 0)
    model = SimpleNamespace(device="cuda", attachments=Attachments(), config=SimpleNamespace(context=2000, pending=64))
    finished(measure(option, model, [0.0] * 100))
    return option


def test_a_step_that_was_seen_in_part_does_not_make_more_draft_tokens_cheaper(monkeypatch):
    option = on_gpu(monkeypatch, {1: 8.0, 3: 9.0, 7: 10.0, 15: 1.0})
    assert [option.extra[n] for n in (1, 7, 15, 20)] == pytest.approx([8.0, 10.0, 10.0, 10.0])


def test_a_gpu_drafts_in_sizes_that_fill_its_graphs(monkeypatch):
    option = on_gpu(monkeypatch, {})
    assert [n for n, ms in enumerate(option.extra) if ms < float("inf")] == [0, 1, 3, 7, 15, 20]
