"""The Responses API of a real server with the demo model, as the `openai` client and plain HTTP see it."""

import json
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel
from responses_stream import folded
from streams import named_events

STRING = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"], "additionalProperties": False}
READ = {"type": "function", "name": "read_file", "parameters": STRING}
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
GET_WEATHER = {"type": "function", "name": "get_weather", "parameters": WEATHER}
NOW = {"reasoning": {"effort": "none"}, "model": "demo"}
CAPITAL = "What is the capital of Japan?"
FILE = [{"role": "user", "content": "Read the file src/main.py."}]


def events_of(http, **body):
    return named_events(http.post("/v1/responses", json={**NOW, **body, "stream": True}))


def without_ids(items):
    return [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in items]


def test_the_client_library_gets_a_response(client, server):
    answer = client.responses.create(input=CAPITAL, instructions="Be brief.", metadata={"a": "b"}, **NOW)
    assert answer.output_text.strip()
    assert answer.status == "completed"
    assert (answer.id[:5], answer.output[0].id[:4]) == ("resp_", "msg_")
    assert (answer.model, answer.instructions, answer.metadata) == ("demo", "Be brief.", {"a": "b"})
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": CAPITAL}]
    prompt = server.loaded.template.render(messages, enable_thinking=False)
    assert answer.usage.input_tokens == len(server.loaded.tokenizer.encode(prompt))
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.usage.output_tokens_details.reasoning_tokens == 0


def test_it_has_the_text_of_a_chat_completion(client):
    chat = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": CAPITAL}], reasoning_effort="none", temperature=0.7, seed=5
    )
    answer = client.responses.create(input=CAPITAL, temperature=0.7, extra_body={"seed": 5}, **NOW)
    assert answer.output_text == chat.choices[0].message.content
    assert answer.usage.output_tokens == chat.usage.completion_tokens


@pytest.mark.parametrize("thinks", [True, False])
def test_streamed_and_whole_are_the_same(http, thinks):
    asked = {"input": FILE, "tools": [READ], "max_output_tokens": 160, "reasoning": None if thinks else NOW["reasoning"]}
    items, last = folded(events_of(http, **asked))
    whole = http.post("/v1/responses", json={**NOW, **asked}).json()
    Response.model_validate(whole)
    assert without_ids(items) == without_ids(whole["output"])
    assert last["response"]["usage"] == whole["usage"]
    kinds = [item["type"] for item in items]
    assert (kinds[-1], "reasoning" in kinds) == ("function_call", thinks)
    assert (whole["usage"]["output_tokens_details"]["reasoning_tokens"] > 0) is thinks


def call_of(response):
    (call,) = [item for item in response.output if item.type == "function_call"]
    return call


def test_a_tool_loop_by_full_history_and_by_previous_response(client):
    tools = {"tools": [READ], "max_output_tokens": 160, "model": "demo"}
    first = client.responses.create(input=FILE, **tools)
    call = call_of(first)
    assert (call.name, json.loads(call.arguments), call.status) == ("read_file", {"path": "src/main.py"}, "completed")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "print('hello')"}
    history = [*FILE, *(item.model_dump() for item in first.output), result]
    full = client.responses.create(input=history, **tools)
    chained = client.responses.create(input=[result], previous_response_id=first.id, **tools)
    assert full.usage.input_tokens == chained.usage.input_tokens > first.usage.total_tokens
    assert full.output_text == chained.output_text
    assert full.usage.output_tokens == chained.usage.output_tokens
    question = {"role": "user", "content": CAPITAL}
    history += [*(item.model_dump() for item in full.output), question]
    full = client.responses.create(input=history, **tools)
    chained = client.responses.create(input=CAPITAL, previous_response_id=chained.id, **tools)
    assert chained.previous_response_id
    assert (full.output_text, full.usage.input_tokens) == (chained.output_text, chained.usage.input_tokens)


def test_the_client_follows_a_stream(client):
    with client.responses.stream(input=FILE, tools=[READ], max_output_tokens=160, **NOW) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert "response.function_call_arguments.done" in kinds
    assert call_of(final).name == "read_file"


class Capital(BaseModel):
    city: str
    country: str


def test_the_client_parses_a_schema(client):
    answer = client.responses.parse(input=CAPITAL, text_format=Capital, max_output_tokens=80, **NOW)
    assert isinstance(answer.output_parsed, Capital)
    free = client.responses.create(input=CAPITAL, text={"format": {"type": "json_object"}}, max_output_tokens=80, **NOW)
    assert free.output_text.startswith("{")


def test_a_custom_tool_is_called_with_text(client):
    tools = [{"type": "custom", "name": "bash", "description": "Runs a command"}]
    asked = {"input": "List the files.", "tools": tools, "tool_choice": {"type": "custom", "name": "bash"}, **NOW}
    answer = client.responses.create(max_output_tokens=80, **asked)
    (call,) = answer.output
    assert (call.type, call.name) == ("custom_tool_call", "bash")
    assert call.input
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "main.py"}
    asked["tool_choice"] = "none"
    chained = client.responses.create(**{**asked, "input": [result]}, previous_response_id=answer.id, max_output_tokens=9)
    assert chained.usage.input_tokens > answer.usage.input_tokens


def test_one_call_if_parallel_calls_are_off(client):
    asked = {"input": "What is the weather in London and Tokyo?", "tools": [GET_WEATHER], "max_output_tokens": 160, **NOW}
    for parallel, n in ((True, 2), (False, 1)):
        answer = client.responses.create(parallel_tool_calls=parallel, **asked)
        assert [item.type for item in answer.output].count("function_call") == n
        assert answer.status == "completed"


def test_an_output_that_is_cut(http):
    items, last = folded(events_of(http, input=CAPITAL, max_output_tokens=3))
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["response"]["usage"]["output_tokens"] == 3
    assert items[-1]["status"] == "incomplete"


def test_stored_responses_are_read_and_deleted(client):
    answer = client.responses.create(input=CAPITAL, **NOW)
    assert client.responses.retrieve(answer.id) == answer
    with pytest.raises(openai.BadRequestError, match="not streamed again"):
        client.responses.retrieve(answer.id, stream=True)
    client.responses.delete(answer.id)
    for call in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match=f"Response with id '{answer.id}' not found."):
            call(answer.id)
    with pytest.raises(openai.BadRequestError, match="Previous response with id") as caught:
        client.responses.create(input="and?", previous_response_id=answer.id, **NOW)
    assert caught.value.code == "previous_response_not_found"


def test_identifiers_differ_between_responses_side_by_side(client):
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda _: client.responses.create(input=CAPITAL, **NOW), range(3)))
    assert len({answer.id for answer in answers}) == len({answer.output[0].id for answer in answers}) == 3
    assert len({answer.output_text for answer in answers}) == 1
