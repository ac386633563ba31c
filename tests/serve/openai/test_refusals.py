"""Bodies that can't be answered: each one clear error in OpenAI's shape."""

import json

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.errors import RequestError
from dflash.serve.http_errors import Problem
from dflash.serve.openai.chat_request import parse_chat
from dflash.serve.openai.dialects import parse_completion
from dflash.serve.parsing.body import parse_json

HI = {"role": "user", "content": "hi"}
MESSAGES = [HI]


def refused(http, path, status, **request):
    """Post, and return the error object."""
    answer = http.post(path, **request)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [HI, {"content": "hi"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{**HI, "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"echo": True}, "echo"),
        ({"ignore_eos": True, "regex": "a"}, "ignore_eos"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_choice": [1]}, "guided_choice"),
        ({"regex": "("}, "regex"),
        ({"grammar": 'root ::= "a'}, "grammar"),
        ({"grammar": "("}, "grammar"),
        ({"grammar": 'start: "a"', "lark": 'start: "a"'}, "lark"),
        ({"guided_regex": "a", "structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "response_format"),
        ({"json_schema": {"type": 5}}, "json_schema"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": "5"}, "max_completion_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-45}, "repetition_penalty"),
        ({"max_tokens": 5, "min_tokens": 6}, "min_tokens"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": {"999999": 1}}, None),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"n": 0}, "n"),
        ({"n": 65}, "n"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ["a", "b" * 257]}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"tools": [{}]}, "tools[0].function"),
        ({"tools": [{"type": "magic", "function": {"name": "a"}}], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "a"}}}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
        ({"chat_template_kwargs": {"documents": 5}}, "chat_template_kwargs.documents"),
        ({"chat_template_kwargs": {"documents": [5]}}, "chat_template_kwargs.documents[0]"),
        ({"model": 5}, "model"),
    ],
)
def test_a_bad_chat_body_names_the_field(http, body, param):
    error = refused(http, "/v1/chat/completions", 400, json={"messages": MESSAGES, **body} if body else body)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [1.0]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [2**31]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"prompt": ["a"] * 3, "n": 43}, "n"),
        ({"prompt": [1] * 30000, "n": 18}, "n"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "b"}, "suffix"),
        ({"prompt": [1] * 16384, "echo": True, "logprobs": 20}, "logprobs"),
        ({"prompt": [1] * 16384, "prompt_logprobs": 20}, "prompt_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
    ],
)
def test_a_bad_completion_body_names_the_field(http, body, param):
    error = refused(http, "/v1/completions", 400, json={"prompt": "a", **body})
    assert error["param"] == param


def test_ids_beyond_the_vocabulary_and_empty_prompts(http):
    assert "99999" in refused(http, "/v1/completions", 400, json={"prompt": [1, 99999]})["message"]
    assert "prompt" in refused(http, "/v1/completions", 400, json={"prompt": ""})["message"]
    assert "99999" in refused(http, "/v1/completions", 400, json={"prompt": ["a", [99999]], "stream": True})["message"]


def test_an_error_gives_a_bound_to_the_last_digit(http):
    error = refused(http, "/v1/completions", 400, json={"prompt": "a", "max_tokens": 2**31})
    assert error["message"] == "max_tokens: must be a whole number from 1 to 2147483647, got 2147483648"


def test_a_prompt_beyond_the_context(http, client):
    error = refused(http, "/v1/completions", 400, json={"prompt": [1] * 40000})
    assert error["code"] == "context_length_exceeded"
    assert "32768" in error["message"]
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="demo", prompt=[1] * 40000, stream=True)


def test_every_model_name_is_served(http, client):
    for name in ("demo-again", "gpt-4"):
        assert client.completions.create(model=name, prompt="a", max_tokens=1).model == name
    assert http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).json()["model"] == "demo"


@pytest.mark.parametrize(
    ("path", "is_anthropic"), [("/chat/completions", False), ("/v1/response", False), ("/v1/messages/batches", True)]
)
def test_an_unknown_path_gets_the_list_of_paths_in_the_shape_of_its_api(http, server, path, is_anthropic):
    answer = http.get(path)
    body = answer.json()
    assert answer.status_code == 404
    assert all(route.path.replace(":path", "") in body["error"]["message"] for route in server.app.routes)
    assert body["error"]["type"] == ("not_found_error" if is_anthropic else "invalid_request_error")
    assert (body.get("type") == "error") == is_anthropic


@pytest.mark.parametrize(
    ("method", "path", "methods"),
    [("GET", "/v1/messages", "POST"), ("POST", "/v1/models", "GET, HEAD"), ("POST", "/v1/responses/x", "DELETE, GET, HEAD")],
)
def test_a_wrong_method_gets_the_right_ones(http, method, path, methods):
    answer = http.request(method, path)
    body = answer.json()
    assert (answer.status_code, answer.headers["allow"]) == (405, methods)
    assert body["error"]["message"] == f"{method} {path} is not possible; use {methods}"
    assert (body.get("type") == "error") == (path == "/v1/messages")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NAMES = """
    model n seed stop stream stream_options temperature top_p top_k min_p logit_bias logprobs top_logprobs max_tokens
    max_completion_tokens tools tool_choice response_format chat_template_kwargs echo best_of suffix presence_penalty
    frequency_penalty repetition_penalty
"""
MESSAGE = st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "name"]), JSON, max_size=4)
BODY = JSON | st.fixed_dictionaries(
    {"messages": JSON | st.lists(MESSAGE, max_size=2), "prompt": JSON}, optional=dict.fromkeys(NAMES.split(), JSON)
)


@given(BODY)
@settings(max_examples=300)
def test_any_json_is_parsed_or_refused(body):
    for parse in (parse_chat, parse_completion):
        try:
            parsed = parse(body)
        except RequestError as error:
            assert "\n" not in str(error)
        else:
            assert parsed.options.n >= 1


@given(st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=300)
def test_any_bytes_are_parsed_or_refused(body):
    try:
        value = parse_json(body)
    except Problem as problem:
        assert problem.status == 400
    else:
        json.dumps(value, allow_nan=False).encode()
