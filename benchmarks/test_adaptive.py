"""Overhead of the choice of a draft. ``pytest benchmarks/test_adaptive.py`` prints µs; a chain should take at most 20."""

from types import SimpleNamespace

import pytest

from dflash.decode.drafters.adaptive.cost_model import CostModel
from dflash.decode.drafters.adaptive.session import AdaptiveState
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain

CHAINS = {
    "a chain of 15": (Strategy(DFlash(), Chain(15)),),
    "chains of 15 and 7": (Strategy(DFlash(), Chain(15)), Strategy(MTP(), Chain(7))),
}


def state_of(strategies):
    """Return the state of a session that has seen some drafts."""
    costs = CostModel(strategies, [6.0 + 0.7 * rows for rows in range(128)], on_host=True)
    for option in costs.options:
        option.extra = [2.0 + 0.2 * n for n in range(option.most + 1)]
        for accepted in (3, 7, 0, 5):
            option.rates.learn([1.0] * accepted + [0.0] * (option.most - accepted))
    sampler = SimpleNamespace(params=SimpleNamespace(scale=None))
    return AdaptiveState(costs, SimpleNamespace(sampler=sampler, token_ids=[1], forced_ids=(), max_length=1000), [])


@pytest.mark.parametrize("strategies", CHAINS.values(), ids=CHAINS)
def test_choice(benchmark, strategies):
    """Choose drafter and size."""
    option, n = benchmark(state_of(strategies).decide, 15, 0, 0.0)
    assert option is not None
    assert n > 0


def test_learning(benchmark):
    """Learn from the outcome of a chain of 15."""
    benchmark(state_of(CHAINS["a chain of 15"]).costs.asked[0].rates.learn, [1.0] * 5 + [0.0] * 10)
