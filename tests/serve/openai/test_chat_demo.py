"""Chat completions of the demo model, through HTTP and the `openai` client: calls, constraints, the same text everywhere."""

import json
from typing import Literal

import pytest
from chat_stream import events_of, folded
from pydantic import BaseModel

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Returns the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
OSLO = [{"role": "user", "content": "What is the weather in Oslo?"}]
QUIET = {"chat_template_kwargs": {"enable_thinking": False}}
SAMPLED = {"temperature": 0.7, "seed": 5, "max_tokens": 150}


class City(BaseModel):
    name: Literal["Tokyo", "Oslo"]
    population: int


def post(http, **body):
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return events_of(answer.text) if body.get("stream") else answer.json()


@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize("settings", [{"max_tokens": 150}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("messages", "tools"), [(OSLO, [WEATHER]), ([{"role": "user", "content": "What is 2 + 2?"}], [])], ids=["call", "text"]
)
def test_streamed_whole_and_generated_are_the_same(http, lm, messages, tools, settings, thinks):
    kwargs = {"enable_thinking": thinks}
    body = {"messages": messages, "tools": tools, "chat_template_kwargs": kwargs, **settings}
    whole = post(http, **body)
    (choice,) = whole["choices"]
    events = post(http, **body, stream=True, stream_options={"include_usage": True})
    message, reason = folded(events)
    generated = lm.generate(messages, tools=tools or None, chat_template_kwargs=kwargs, recover="none", **settings)
    calls = [call.as_message()["function"] for call in generated.tool_calls]
    assert reason == choice["finish_reason"] == generated.finish_reason
    for found in (message, choice["message"]):
        assert (found["content"] or "") == generated.content
        assert found.get("reasoning_content", "") == generated.reasoning
        assert [call["function"] for call in found.get("tool_calls", [])] == calls
    assert bool(generated.reasoning) == thinks
    assert events[-1]["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == len(generated.tokens)
    reasoning = whole["usage"].get("completion_tokens_details", {}).get("reasoning_tokens", 0)
    assert reasoning == (generated.tokens.index(lm.tokenizer.id_of("</think>")) + 1 if thinks else 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_its_result_and_an_answer(http, stream):
    history = list(OSLO)
    for _ in range(2):
        found = post(http, messages=history, tools=[WEATHER], stream=stream, max_tokens=120, **QUIET)
        message, reason = folded(found) if stream else (found["choices"][0]["message"], found["choices"][0]["finish_reason"])
        history.append(message)
        if len(history) == 2:
            (call,) = message["tool_calls"]
            assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
            assert reason == "tool_calls"
            result = json.dumps({"city": "Oslo", "temperature": 24, "condition": "sunny"})
            history.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    assert reason == "stop"
    assert "tool_calls" not in message
    assert "24" in message["content"]


def test_the_openai_client_collects_a_stream(client):
    with client.chat.completions.stream(model="local", messages=OSLO, tools=[WEATHER], extra_body=QUIET) as stream:
        kinds = {event.type for event in stream}
        choice = stream.get_final_completion().choices[0]
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds


def test_the_openai_client_parses_structured_output(client):
    messages = [{"role": "user", "content": "What is the capital of Japan?"}]
    settings = {"model": "local", "messages": messages, "response_format": City, "max_tokens": 60, "extra_body": QUIET}
    parsed = client.chat.completions.parse(**settings).choices[0].message.parsed
    assert isinstance(parsed, City)
    with client.chat.completions.stream(**settings) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.parsed == parsed


@pytest.mark.parametrize(
    ("body", "possible"),
    [
        ({"guided_choice": ["red", "green"]}, {"red", "green"}),
        ({"structured_outputs": {"regex": "(yes|no)!"}}, {"yes!", "no!"}),
        ({"lark": 'start: "left" | "right"'}, {"left", "right"}),
        ({"json_schema": {"enum": [1, 2]}}, {"1", "2"}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_constrained_content_is_one_of_the_possible_texts(http, body, possible, stream):
    found = post(http, messages=OSLO, stream=stream, max_tokens=20, **QUIET, **body)
    message = folded(found)[0] if stream else found["choices"][0]["message"]
    assert message["content"] in possible


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_tool_that_must_be_called(http, choice):
    """Whatever the question, and although the model thinks first."""
    messages = [{"role": "user", "content": "What is 2 + 2?"}]
    body = {"messages": messages, "tools": [WEATHER], "tool_choice": choice, "parallel_tool_calls": False}
    found = post(http, **body, max_tokens=150, thinking_token_budget=20)["choices"][0]
    (call,) = found["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"])["city"]
    assert (found["message"]["content"], found["finish_reason"]) == (None, "tool_calls")
    assert found["message"]["reasoning_content"]


def test_a_call_that_is_cut_stays_open(http):
    body = {"messages": OSLO, "tools": [WEATHER], "tool_choice": "required", **QUIET}
    whole = post(http, **body)["usage"]["completion_tokens"]
    cut = post(http, **body, max_tokens=whole - 8)["choices"][0]
    assert cut["finish_reason"] == "length"
    with pytest.raises(ValueError, match=r"delimiter|Unterminated|Expecting"):
        json.loads(cut["message"]["tool_calls"][0]["function"]["arguments"])
