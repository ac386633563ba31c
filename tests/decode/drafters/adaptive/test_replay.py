"""The adaptive drafter against every fixed strategy, on recorded acceptances at the prices of a 27B model on a GPU."""

import random

import pytest
from replay import PRICES, adaptive_ms, fixed_ms, recorded

SETS = recorded()
FIXED = [(None, 0), ("lookup", 7), ("mtp", 3), ("mtp", 7), ("dflash", 7), ("dflash", 15), ("dflash-tree", 22)]
NAMES = {"dflash": 15, "mtp": 7, "lookup": 15}


@pytest.mark.parametrize("name", SETS)
def test_at_least_95_percent_of_the_best_fixed_choice_in_any_order_of_the_texts(name):
    best = min(fixed_ms(SETS[name], PRICES["27B"], *each) for each in FIXED)
    for seed in range(10):
        texts = SETS[name][:]
        random.Random(seed).shuffle(texts)
        assert adaptive_ms(texts, PRICES["27B"], NAMES, on_host=False) <= best / 0.95


def test_drafters_that_are_never_right_cost_little():
    wrong = {each: [(0, n, None) for n in range(15, -1, -1) for _ in range(4)] for each in ("dflash", "mtp")}
    texts = [{"n": 60, "drafts": wrong | {"lookup": [(0, 0, [])] * 60}}] * 12
    plain = fixed_ms(texts, PRICES["27B"], None, 0)
    assert adaptive_ms(texts, PRICES["27B"], NAMES, on_host=False) < 1.06 * plain
