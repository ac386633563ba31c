"""Behaviour that clients may expect and that is not there yet: each test passes as soon as it is."""

import pytest
from toy import Toy

from dflash.decode.engine import Engine
from dflash.decode.session import Session


@pytest.mark.xfail(reason="prompts are read in chunks of a fixed number of tokens, oldest first", strict=True)
def test_a_short_prompt_is_not_read_behind_a_long_one():
    engine = Engine(Toy(context=30_000, pages=200), chunk=64)
    engine.add(Session([1] * 10_000, max_tokens=1))
    short = engine.add(Session([1, 2, 3], max_tokens=1))
    for _ in range(10):
        engine.step()
    assert short.finished
