"""Measures of a cell from rows whose process is known."""

import numpy as np
import pytest

from dflash.evaluation.study.bootstrap import interval, ratio, resampled
from dflash.evaluation.study.measures import acceptance_pairs, measured

RATES = [0.8, 0.5, 0.9]


def rows_of(n_prompts, n_steps, seed=0, rates=RATES):
    """Requests whose draft tokens are accepted at known rates, given those before."""
    random = np.random.default_rng(seed)
    found = []
    for prompt in range(n_prompts):
        accepted = [int(np.argmin([*(random.random(len(rates)) < rates), False])) for _ in range(n_steps)]
        found.append(
            {
                "prompt": str(prompt),
                "step_accepted": accepted,
                "step_depths": [len(rates)] * n_steps,
                "step_tokens": [n + 1 for n in accepted],
                "first_token_seconds": 0.5,
                "decode_seconds": 0.01 * (n_steps - 1),
                **dict.fromkeys(("propose_seconds", "forward_seconds", "verify_seconds"), 0.002 * (n_steps - 1)),
            }
        )
    return found


def test_acceptance_by_position_is_conditional_on_the_positions_before():
    found = measured(rows_of(40, 500))
    assert found["acceptance_by_position"] == pytest.approx(RATES, abs=0.02)
    assert found["acceptance_length"] == pytest.approx(1 + 0.8 + 0.4 + 0.36, abs=0.03)


def test_counts_of_steps_agree_with_each_other():
    rows = rows_of(3, 50)
    found, steps = measured(rows), 150
    assert sum(found["tokens_a_step"].values()) == sum(found["first_rejected"].values()) == steps
    mean = sum(int(size) * n for size, n in found["tokens_a_step"].items()) / steps
    assert found["acceptance_length"] == pytest.approx(mean)
    assert found["first_rejected"]["0"] == found["tokens_a_step"]["4"]
    assert found["first_rejected"]["1"] == found["tokens_a_step"]["1"]


def test_seconds_of_a_step_add_up():
    found = measured(rows_of(2, 30))
    assert found["seconds_a_step"] == pytest.approx({"draft": 0.002, "forward": 0.002, "verify": 0.002, "host": 0.004})
    tokens = sum(sum(row["step_tokens"][1:]) for row in rows_of(2, 30))
    assert found["tokens_per_second"] == pytest.approx(tokens / (0.01 * 29 * 2))


def test_plain_decoding_has_a_length_of_1_and_no_positions():
    rows = [{**row, "step_accepted": [0] * 9, "step_depths": [0] * 9, "step_tokens": [1] * 9} for row in rows_of(3, 9)]
    found = measured(rows)
    assert (found["acceptance_length"], found["interval"]) == (1, [1, 1])
    assert found["acceptance_by_position"] == []
    assert found["first_rejected"] == {}


def test_intervals_contain_the_truth_about_as_often_as_they_say():
    """With 30 prompts: 400 intervals contain it between 91 and 97 times in a hundred; fewer prompts give less than 95."""
    truth, inside = 1 + 0.8 + 0.4 + 0.36, 0
    for seed in range(400):
        low, high = measured(rows_of(30, 20, seed))["interval"]
        inside += low <= truth <= high
    assert 0.91 < inside / 400 < 0.97


def test_resamples_depend_on_numbers_and_stream_alone():
    pairs = acceptance_pairs(rows_of(10, 20))
    assert (resampled(pairs) == resampled(pairs)).all()
    assert (resampled(pairs) != resampled(pairs, stream=1)).any()
    assert resampled(pairs).mean() == pytest.approx(ratio(pairs), abs=0.01)
    wide, narrow = (np.ptp(interval(resampled(acceptance_pairs(rows_of(n, 20))))) for n in (10, 160))
    assert narrow < wide / 2


def test_seeds_of_a_prompt_are_one_unit_of_the_bootstrap():
    rows = rows_of(10, 20)
    assert measured([*rows, *rows])["interval"] == measured(rows)["interval"]
