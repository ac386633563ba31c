"""Loops end at the same token on every path, and nothing else does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import Toy
from watching import WAYS, script, way, written

from dflash.decode.recoveries.loop_guard import LoopGuard
from dflash.decode.special_tokens import SpecialTokens
from dflash.errors import RequestError

PROMPT, CALL = [7, 7, 7, 7], (11, 12)


def first_loop(text, same, shortest, longest, count):
    """Length of the shortest prefix of `text` that ends in a loop, by looking at every one."""
    for n in range(1, len(text) + 1):
        seen = text[:n]
        if same and n >= same and len(set(seen[-same:])) == 1:
            return n
        for period in range(shortest, longest + 1):
            if n >= period * count and seen[-period * count :] == seen[-period:] * count:
                return n
    return None


@given(st.data())
@settings(max_examples=150)
def test_it_ends_where_the_definition_says(data):
    draw = data.draw
    text = [
        token
        for part, times in draw(
            st.lists(st.tuples(st.lists(st.integers(1, 3), min_size=1, max_size=5), st.integers(1, 5)), max_size=8)
        )
        for token in part * times
    ]
    shortest = draw(st.integers(1, 4))
    guard = LoopGuard(
        same=draw(st.sampled_from([0, 2, 3, 5])),
        min_period=shortest,
        max_period=draw(st.integers(shortest, 7)) if draw(st.booleans()) else 0,
        count=draw(st.integers(2, 4)),
    )
    end = first_loop(text, guard.same, shortest, guard.max_period, guard.count)
    toy = Toy(law=script(len(PROMPT), text))
    kind = draw(st.sampled_from(WAYS))
    session = written(toy, PROMPT, way(kind, [*PROMPT, *text]) | guard, max_tokens=200, eos=[0])
    assert session.output_ids == (text[:end] if end is not None else [*text, 0])
    assert session.finish_reason == ("length" if end is not None else "stop")
    assert [each.action for each in session.interventions] == ["cut"] * (end is not None)


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("n", [3, 8])
def test_a_call_that_stays_open(kind, n):
    text = [1, 11, 2, 3, 12, 4, 5, 6, 11, *[1, 2, 3, 4, 5, 6, 7, 8, 9, 10] * 3]
    toy = Toy(law=script(len(PROMPT), text))
    strategy = way(kind, [*PROMPT, *text]) | LoopGuard(body=n)
    session = written(toy, PROMPT, strategy, eos=[0], special_tokens=SpecialTokens(call=CALL))
    assert session.output_ids == text[: 9 + n]
    assert session.finish_reason == "length"
    assert "still open" in str(session.interventions[0])
    assert written(toy, PROMPT, strategy, eos=[0]).finish_reason == "stop"


def test_long_periods_over_a_long_text():
    rng = np.random.default_rng(0)
    part = rng.integers(1, 13, 130).tolist()
    text = rng.integers(1, 13, 700).tolist() + part * 3 + [5] * 9
    toy = Toy(law=script(len(PROMPT), text))
    for kind in WAYS:
        strategy = way(kind, [*PROMPT, *text]) | LoopGuard(max_period=130)
        session = written(toy, PROMPT, strategy, max_tokens=None, eos=[0])
        assert session.output_ids == text[: 700 + 3 * 130]
        assert "the last 130 tokens came 3 times" in str(session.interventions[0])
        session = written(toy, PROMPT, way(kind, [*PROMPT, *text]) | LoopGuard(max_period=129), max_tokens=None, eos=[0])
        assert session.finish_reason == "stop"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"same": 1}, "same: must be 0 or at least 2"),
        ({"min_period": 9, "max_period": 8}, "periods: must be 1 to 4096, the least first, got 9 and 8"),
        ({"max_period": 5000}, "periods"),
        ({"count": 1}, "count: must be at least 2"),
        ({"body": -1}, "body"),
    ],
)
def test_what_is_no_guard(settings, message):
    with pytest.raises(RequestError, match=message):
        LoopGuard(**settings)
