"""CPU time of masks: of one request, and of all that run at once."""

import pytest

from dflash.errors import RequestError
from dflash.generation.grammar import mask_budget
from dflash.generation.grammar.limits import FREE_MASK_SECONDS, MASK_SECONDS, SHARED_MASK_SECONDS
from dflash.generation.grammar.mask_budget import MaskBudget, SharedMaskBudget


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(mask_budget, "monotonic", lambda: now[0])
    return now


def total_of(budgets, mask, rounds=10):
    """CPU seconds that requests take which compute one mask after the other until each has ended."""
    total, running = 0.0, list(budgets)
    for _ in range(rounds):
        for budget in list(running):
            try:
                budget.charge(0.0)
                total += mask
                budget.charge_mask(mask)
            except RequestError:
                running.remove(budget)
    assert not running
    return total


@pytest.mark.parametrize("n", [1, 3, 12])
@pytest.mark.parametrize("mask", [0.02, 0.04, 0.074])
def test_slow_masks_of_many_requests_take_little_more_than_those_of_one(clock, n, mask):
    shared = SharedMaskBudget()
    together = total_of([MaskBudget(shared) for _ in range(n)], mask)
    assert together <= SHARED_MASK_SECONDS + mask + n * (2 * FREE_MASK_SECONDS + mask)
    assert together <= n * (MASK_SECONDS + 2 * mask + 4 * FREE_MASK_SECONDS)
    if n == 3:
        assert together <= 0.3


def test_requests_of_fast_masks_go_on_while_others_take_too_long(clock):
    shared = SharedMaskBudget()
    fast, slow = MaskBudget(shared), [MaskBudget(shared) for _ in range(4)]
    total_of(slow, 0.05)
    assert shared.load > 1
    for _ in range(100):
        fast.charge_mask(0.004)
        fast.charge(0.0001)
    fast.charge_mask(0.0145)  # one slow mask, as of free text in a large vocabulary


def test_the_time_of_all_comes_back(clock):
    shared = SharedMaskBudget()
    total_of([MaskBudget(shared) for _ in range(4)], 0.05)
    clock[0] += 5.0
    assert shared.load == 0
    late = MaskBudget(shared)
    late.charge_mask(0.05)
    late.charge(0.0)


def test_one_request_that_has_spent_its_time_has_no_more(clock):
    budget = MaskBudget(SharedMaskBudget())
    with pytest.raises(RequestError, match="masks take too long"):
        budget.charge_mask(0.2)
    clock[0] += 100
    with pytest.raises(RequestError, match="masks take too long"):
        budget.charge(0.0)
