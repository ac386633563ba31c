"""Acceptance rates learned from draft tokens whose true rates are known."""

from itertools import accumulate
from operator import mul

import numpy as np
import pytest

from dflash.decode.drafters.adaptive.cost_model import IDLE_DECAY, best_size
from dflash.decode.drafting.acceptance_rates import AcceptanceRates, ObservedRatio


def outcomes(rng, given):
    """Return for each position of a draft 1 if it is accepted, up to the first that is not."""
    return np.minimum.accumulate(rng.random(len(given)) < given).astype(float).tolist()


def test_chances_are_those_of_the_law_and_go_on_beyond_what_was_tried():
    rng, rates = np.random.default_rng(1), AcceptanceRates(15)
    law = np.array([0.95, 0.9, 0.8, 0.8, 0.7, 0.7])
    for _ in range(600):
        rates.learn(outcomes(rng, law))
    assert np.abs(np.array(rates.expected[:6]) - law).max() < 0.12
    assert all(0.9 < after / before <= 1 for before, after in zip(rates.expected[5:], rates.expected[6:], strict=False))
    for _ in range(600):
        rates.learn(outcomes(rng, law / 2))
    assert rates.expected[0] == pytest.approx(law[0] / 2, abs=0.12)


def test_an_unused_drafter_is_unknown_again_in_the_end():
    rates, new = AcceptanceRates(6), AcceptanceRates(6).expected
    for _ in range(100):
        rates.learn([0.0] * 6)
    assert rates.expected[0] < 0.15
    for _ in range(4000):
        rates.decay(IDLE_DECAY)
    assert rates.expected == pytest.approx(new, abs=0.01)


def test_hope_is_for_whom_little_is_known_of():
    rates = AcceptanceRates(6)
    begun = np.subtract(rates.optimistic, rates.expected)
    for _ in range(5):
        rates.learn([0.0] * 6)
    unlucky = rates.optimistic[0]
    for _ in range(300):
        rates.learn([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    known = np.subtract(rates.optimistic, rates.expected)
    assert (begun > 0.05).all()
    assert unlucky > rates_after(5, 0.0).expected[0] + 0.05
    assert known[0] < 0.05 < begun[0]
    assert (np.array(rates.optimistic) <= 1).all()


def chained(given):
    return list(accumulate(given, mul))


def rates_after(n, chance):
    """After n accepted draft tokens as often."""
    rates = AcceptanceRates(6)
    for _ in range(n):
        rates.learn([chance] * 6)
    return rates


def test_what_is_only_likely_counts_for_as_much():
    """A draft that knows its chances tells in one step what outcomes tell in many."""
    known, seen, law = AcceptanceRates(4), AcceptanceRates(4), [0.9, 0.8, 0.7, 0.6]
    rng = np.random.default_rng(2)
    for _ in range(800):
        known.learn(chained(law))
        seen.learn(outcomes(rng, law))
    assert known.expected == pytest.approx(law, abs=0.02)
    assert known.expected == pytest.approx(seen.expected, abs=0.12)


def test_in_a_tree_a_second_candidate_may_be_accepted():
    rates = AcceptanceRates(4)
    for turn in range(400):
        rates.learn([1.0, 0.0, 1.0, 0.0] if turn % 2 else [1.0, 1.0, 0.0, 0.0])
    assert sum(chained(rates.expected)) == pytest.approx(2.0, abs=0.2)


def test_what_a_drafter_thinks_is_believed_until_it_errs():
    rng, rates, scores = np.random.default_rng(3), AcceptanceRates(3), np.log([0.9, 0.9, 0.3])
    assert rates.by_score(scores) == pytest.approx([0.9, 0.9, 0.3])
    for _ in range(400):
        rates.learn_scores(scores, int(sum(outcomes(rng, np.array([0.6, 0.6, 0.3])))))
    assert rates.by_score(scores) == pytest.approx([0.6, 0.6, 0.3], abs=0.12)
    assert rates.by_score([np.log(0.99)]) == pytest.approx([0.99])
    assert rates.by_score([0.0, -1e9]) == pytest.approx([1.0, 0.0], abs=1e-6)


@pytest.mark.parametrize("factor", [0.4, 1.0, 2.5])
def test_a_request_in_which_drafts_fail_more_or_less_often(factor):
    rng, bias, given = np.random.default_rng(4), ObservedRatio(), [0.9, 0.85, 0.8]
    assert bias.factor == 1.0
    law, found = 1 - factor * (1 - np.array(given)), []
    for _ in range(1200):
        chances = outcomes(rng, law)
        bias.learn(1 - chances[-1], sum(a * (1 - b) for a, b in zip([1.0, *chances], given, strict=False)))
        found.append(bias.factor)
    assert np.mean(found[200:]) == pytest.approx(factor, rel=0.2)


@pytest.mark.parametrize("bias", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("worth", [0.05, 0.2, 0.5])
def test_the_size_is_that_of_the_largest_gain(bias, worth):
    rng = np.random.default_rng(5)
    for _ in range(20):
        rates, ms = rng.uniform(0.3, 1.0, 15), np.cumsum(rng.uniform(0.1, 2.0, 16))
        survivals = np.cumprod(np.maximum(1 - bias * (1 - rates), 0))
        gains = 2.0 + np.concatenate([[0], np.cumsum(survivals)]) - worth * ms
        for most in (1, 7, 15):
            gain, n = best_size(rates[:most].tolist(), bias, ms.tolist(), tokens=2.0, worth=worth)
            assert n == int(np.argmax(gains[: most + 1]))
            assert gain == pytest.approx(gains[n])


def test_a_size_that_is_not_used_is_not_chosen():
    ms = [1.0, 1.0, float("inf"), 1.0]
    assert best_size([1.0, 1.0], 1.0, ms, tokens=1.0, worth=0.1)[1] == 1
    assert best_size([1.0, 1.0, 1.0], 1.0, ms, tokens=1.0, worth=0.1)[1] == 3
