"""What is learned of guesses whose law is known."""

import numpy as np
import pytest

from dflash.decode.drafters.adaptive.acceptance import AcceptanceRates, Calibration, RequestBias, all_right


def outcomes(rng, given):
    """Of one draft: 1 up to the first guess that is wrong."""
    return np.minimum.accumulate(rng.random(len(given)) < given).astype(float).tolist()


def test_chances_are_those_of_the_law_and_go_on_beyond_what_was_tried():
    rng, rates = np.random.default_rng(1), AcceptanceRates(15)
    law = np.array([0.95, 0.9, 0.8, 0.8, 0.7, 0.7])
    for _ in range(600):
        rates.learn(outcomes(rng, law))
    assert np.abs(np.array(rates.expected[:6]) - law).max() < 0.12
    assert all(0.9 < after / before <= 1 for before, after in zip(rates.expected[5:], rates.expected[6:], strict=False))
    for _ in range(300):
        rates.learn(outcomes(rng, law / 2))
    assert rates.expected[0] == pytest.approx(law[0] / 2, abs=0.12)


def test_who_is_not_asked_is_as_good_as_new_in_the_end():
    rates, new = AcceptanceRates(6), AcceptanceRates(6).expected
    for step in range(100):
        rates.learn([0.0] * 6)
        rates.pass_time(step)
    assert rates.expected[0] < 0.15
    for step in range(100, 4000, 8):
        rates.pass_time(step)
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
    assert unlucky > odds_of(5, 0.0).expected[0] + 0.05
    assert known[0] < 0.03 < begun[0]
    assert (np.array(rates.optimistic) <= 1).all()


def odds_of(n, chance):
    """After n guesses that were right as often."""
    rates = AcceptanceRates(6)
    for _ in range(n):
        rates.learn([chance] * 6)
    return rates


def test_what_is_only_likely_counts_for_as_much():
    """A draft that knows its chances tells in one step what outcomes tell in many."""
    known, seen, law = AcceptanceRates(4), AcceptanceRates(4), [0.9, 0.8, 0.7, 0.6]
    rng = np.random.default_rng(2)
    for _ in range(800):
        known.learn(all_right(law))
        seen.learn(outcomes(rng, law))
    assert known.expected == pytest.approx(law, abs=0.02)
    assert known.expected == pytest.approx(seen.expected, abs=0.12)


def test_in_a_tree_a_guess_may_be_right_where_the_one_before_is_not():
    rates = AcceptanceRates(4)
    for turn in range(400):
        rates.learn([1.0, 0.0, 1.0, 0.0] if turn % 2 else [1.0, 1.0, 0.0, 0.0])
    assert sum(all_right(rates.expected)) == pytest.approx(2.0, abs=0.2)


def test_what_a_drafter_thinks_is_believed_until_it_errs():
    rng, calibration, scores = np.random.default_rng(3), Calibration(), np.log([0.9, 0.9, 0.3])
    assert calibration.expected(scores) == pytest.approx([0.9, 0.9, 0.3])
    for _ in range(400):
        calibration.learn(scores, int(sum(outcomes(rng, np.array([0.6, 0.6, 0.3])))))
    assert calibration.expected(scores) == pytest.approx([0.6, 0.6, 0.3], abs=0.12)
    assert calibration.expected([np.log(0.99)]) == pytest.approx([0.99])
    assert calibration.expected([0.0, -1e9]) == pytest.approx([1.0, 0.0], abs=1e-6)


@pytest.mark.parametrize("factor", [0.4, 1.0, 2.5])
def test_a_text_in_which_guesses_fail_more_or_less_often(factor):
    rng, ease, given = np.random.default_rng(4), RequestBias(), [0.9, 0.85, 0.8]
    assert ease.adjusted(given) == pytest.approx(given)
    law = 1 - factor * (1 - np.array(given))
    found = []
    for _ in range(600):
        chances = outcomes(rng, law)
        ease.fade()
        ease.learn(1 - chances[-1], sum(a * (1 - b) for a, b in zip([1.0, *chances], given, strict=False)))
        found.append(ease.adjusted(given))
    assert np.mean(found[100:], axis=0) == pytest.approx(law, abs=0.08)
