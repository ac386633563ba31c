"""``/v1/messages`` with the demo model."""

import json

import pytest
from message_stream import fold

WEATHER = {
    "name": "get_weather",
    "description": "Current weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
OSLO = {"role": "user", "content": "What is the weather in Oslo?"}


@pytest.fixture
def ask(http):
    """Sends one request and returns the message, put together if it was streamed."""

    def send(messages, *, stream=False, **fields):
        body = {"model": "demo", "max_tokens": 100, "messages": messages, "stream": stream, **fields}
        answer = http.post("/v1/messages", json=body)
        assert answer.status_code == 200, answer.text
        if not stream:
            return answer.json()
        lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
        return fold([json.loads(line.removeprefix("data: ")) for line in lines])

    return send


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_offered_called_and_answered(ask, http, stream):
    asked = ask([OSLO], tools=[WEATHER], stream=stream)
    assert asked["stop_reason"] == "tool_use"
    call = asked["content"][-1]
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "get_weather", {"city": "Oslo"})
    result = {
        "type": "tool_result",
        "tool_use_id": call["id"],
        "content": [{"type": "text", "text": '{"city": "Oslo", "temperature": -3, "condition": "snow"}'}],
    }
    messages = [OSLO, {"role": "assistant", "content": asked["content"]}, {"role": "user", "content": [result]}]
    answered = ask(messages, tools=[WEATHER], stream=stream)
    assert answered["stop_reason"] == "end_turn"
    assert "Oslo" in answered["content"][-1]["text"]
    counted = http.post("/v1/messages/count_tokens", json={"model": "demo", "messages": messages, "tools": [WEATHER]})
    assert counted.json() == {"input_tokens": answered["usage"]["input_tokens"]}


def test_a_tool_that_must_be_called(ask):
    choices = [{"type": "any"}, {"type": "tool", "name": "get_weather"}]
    for choice in choices:
        message = ask([{"role": "user", "content": "Hello"}], tools=[WEATHER], tool_choice=choice)
        assert message["content"][-1]["name"] == "get_weather"
        assert set(message["content"][-1]["input"]) == {"city"}


def test_an_output_of_a_schema(ask):
    schema = {"type": "object", "properties": {"size": {"enum": ["small", "large"]}}, "required": ["size"]}
    schema["additionalProperties"] = False
    message = ask([OSLO], output_config={"format": {"type": "json_schema", "schema": schema}})
    assert json.loads(message["content"][-1]["text"])["size"] in ("small", "large")


def test_limits_and_stops(ask):
    count = [{"role": "user", "content": "Count from 3 to 12."}]
    cut = ask(count, max_tokens=5)
    assert (cut["stop_reason"], cut["usage"]["output_tokens"]) == ("max_tokens", 5)
    assert ask(count, max_tokens=32_000_000)["stop_reason"] == "end_turn"
    stopped = ask(count, stop_sequences=["never", ", 7"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", ", 7")
    assert stopped["content"] == [{"type": "text", "text": "3, 4, 5, 6"}]
