"""Behaviour that clients may expect and that is not there yet: each test passes as soon as it is."""

import pytest
from toy import Toy

from dflash.decode.engine import Engine
from dflash.decode.session import Session

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
ASK = {"messages": [{"role": "user", "content": "What is the capital of Japan?"}], "max_tokens": 60}


@pytest.mark.xfail(reason="prompts are read in chunks of a fixed number of tokens, oldest first", strict=True)
def test_a_short_prompt_is_not_read_behind_a_long_one():
    engine = Engine(Toy(context=30_000, pages=200), chunk=64)
    engine.add(Session([1] * 10_000, max_tokens=1))
    short = engine.add(Session([1, 2, 3], max_tokens=1))
    for _ in range(10):
        engine.step()
    assert short.finished


@pytest.mark.xfail(reason="tool_choice does not constrain the output", strict=True)
def test_a_required_tool_is_called(http):
    answer = http.post("/v1/chat/completions", json={**ASK, "tools": TOOLS, "tool_choice": "required"}).json()
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look"


@pytest.mark.xfail(reason="a stream sends nothing between its first chunk and the first token", strict=True)
def test_a_stream_sends_heartbeats_while_a_prompt_is_read(http):
    body = {"prompt": [7] * 4000, "max_tokens": 1, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as answer:
        first = next(line for line in answer.iter_lines() if line)
    assert '"text":""' in first
