"""The description of the API against the routes and the parsers of the server."""

import jsonschema
import pytest
from in_process import sent

from dflash.generation.messages.fields import FieldError
from dflash.serve.admin.openapi import BODIES
from dflash.serve.admin.tokens import apply_template, detokenize, tokenize
from dflash.serve.anthropic.request import parse_messages
from dflash.serve.limits import Limits
from dflash.serve.openai.chat_request import parse_chat
from dflash.serve.openai.dialects import parse_completion
from dflash.serve.responses.request import parse_responses
from dflash.serve.responses.store import ResponseStore

MESSAGES = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
GOOD = {
    "/v1/chat/completions": [
        {"messages": MESSAGES},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "max_tokens": None, "stop": ["a"]},
        {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required", "response_format": None, "n": 2.0},
        {"messages": MESSAGES, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"messages": [*MESSAGES, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]},
        {"messages": MESSAGES, "logit_bias": {"5": -100}, "stream": True, "stream_options": {"include_usage": True}},
    ],
    "/v1/completions": [{"prompt": "a"}, {"prompt": [1, 2]}, {"prompt": ["a", [1]], "echo": True, "seed": -5}],
    "/v1/responses/input_tokens": [{"input": "Hi"}, {"input": [{"role": "user", "content": "Hi"}], "instructions": "a"}],
    "/v1/responses": [{"input": "Hi"}, {"input": [{"role": "user", "content": "Hi"}], "instructions": None, "store": False}],
    "/v1/messages": [
        {"messages": MESSAGES, "max_tokens": 5},
        {
            "messages": MESSAGES,
            "max_tokens": 1,
            "system": [{"type": "text", "text": "a"}],
            "stop_sequences": ["a"],
            "thinking": {"type": "enabled"},
        },
        {
            "messages": MESSAGES,
            "max_tokens": 1,
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "any"},
        },
    ],
    "/v1/messages/count_tokens": [{"messages": MESSAGES, "model": "any"}],
    "/tokenize": [{"content": "a"}, {"prompt": "a", "return_token_strs": True}, {"messages": MESSAGES}],
    "/detokenize": [{"tokens": [1, 2]}, {"tokens": []}],
    "/apply-template": [{"messages": MESSAGES, "tools": [TOOL], "chat_template_kwargs": {"enable_thinking": False}}],
}
BAD = {
    "/v1/chat/completions": [
        {},
        {"messages": []},
        {"messages": "Hi"},
        {"messages": [{"content": "Hi"}]},
        {"messages": MESSAGES, "tools": [{"type": "function"}]},
        {"messages": MESSAGES, "tool_choice": "always"},
        {"messages": MESSAGES, "stop": [""]},
        {"messages": MESSAGES, "logit_bias": {"a": 1}},
        {"messages": MESSAGES, "stream": "yes"},
        {"messages": MESSAGES, "temperature": "0"},
        {"messages": MESSAGES, "repetition_penalty": 0},
    ],
    "/v1/completions": [{}, {"prompt": []}, {"prompt": [[]]}, {"prompt": [-1]}, {"prompt": 5}, {"prompt": "a", "seed": 0.5}],
    "/v1/responses/input_tokens": [{}, {"input": []}, {"input": 5}, {"input": "a", "instructions": 1}],
    "/v1/responses": [{}, {"input": []}, {"input": 5}, {"input": "a", "store": 1}, {"input": "a", "instructions": 1}],
    "/v1/messages": [
        {},
        {"messages": MESSAGES},
        {"messages": MESSAGES, "max_tokens": None},
        {"messages": [], "max_tokens": 1},
        {"messages": [{"role": "robot", "content": "a"}], "max_tokens": 1},
        {"messages": MESSAGES, "max_tokens": 1, "tools": 5},
    ],
    "/v1/messages/count_tokens": [
        {"messages": MESSAGES, "thinking": {"type": "perhaps"}},
        {"messages": MESSAGES, "system": 5},
    ],
    "/tokenize": [{}, {"content": 1}, {"content": "a", "prompt": "b"}, {"prompt": "a", "return_token_strs": 1}],
    "/detokenize": [{}, {"tokens": ["a"]}, {"tokens": [-1]}, {"tokens": [0.5]}],
    "/apply-template": [{}, {"messages": MESSAGES, "chat_template_kwargs": 1}],
}


@pytest.fixture
def parsers(lm):
    """Functions that raise a FieldError for a body that the server refuses, by path."""
    return {
        "/v1/chat/completions": parse_chat,
        "/v1/completions": parse_completion,
        "/v1/responses": lambda body: parse_responses(body, ResponseStore()),
        "/v1/responses/input_tokens": lambda body: parse_responses(body, ResponseStore()),
        "/v1/messages": parse_messages,
        "/v1/messages/count_tokens": lambda body: parse_messages(body, counting=True),
        "/tokenize": lambda body: tokenize(body, lm.tokenizer, lm.template, Limits(512)),
        "/detokenize": lambda body: detokenize(body, lm.tokenizer),
        "/apply-template": lambda body: apply_template(body, lm.template),
    }


def accepted(parse, body):
    try:
        parse(body)
    except FieldError:
        return False
    return True


@pytest.mark.parametrize("path", BODIES)
def test_schemas_accept_what_the_server_accepts(parsers, path):
    validator = jsonschema.Draft202012Validator(BODIES[path])
    for body in GOOD[path]:
        assert validator.is_valid(body), (body, list(validator.iter_errors(body)))
        assert accepted(parsers[path], body), body
    for body in BAD[path]:
        assert not validator.is_valid(body), body
        assert not accepted(parsers[path], body), body


@pytest.mark.parametrize("path", [path for path in BODIES if "properties" in BODIES[path]])
def test_bounds_of_numbers_are_those_of_the_server(parsers, path):
    base = {**GOOD[path][0], "top_logprobs": None}
    for name, schema in BODIES[path]["properties"].items():
        for bound, beyond in ("minimum", -1), ("maximum", 1):
            if bound in schema:
                more = {"max_tokens": schema[bound]} if name == "min_tokens" and schema[bound] else {}
                more |= {"logprobs": True} if name == "top_logprobs" else {}
                more |= {"echo": True} if name == "max_tokens" and not schema[bound] else {}
                assert accepted(parsers[path], {**base, **more, name: schema[bound]}), (name, schema[bound])
                assert not accepted(parsers[path], {**base, name: schema[bound] + beyond}), (name, bound)


def test_every_route_is_described(http, server):
    described = http.get("/openapi.json").json()
    found = {
        (path.replace("{name}", "{name:path}"), method.upper())
        for path, item in described["paths"].items()
        for method in item
    }
    assert found == {(route.path, method) for route in server.app.routes for method in route.methods - {"HEAD"}}
    assert described["openapi"].startswith("3.1")


def test_every_post_has_a_valid_schema(http):
    for path, item in http.get("/openapi.json").json()["paths"].items():
        if "post" in item:
            schema = item["post"]["requestBody"]["content"]["application/json"]["schema"]
            jsonschema.Draft202012Validator.check_schema(schema)
            assert path in GOOD
            assert path in BAD


def test_open_paths_are_those_without_a_key(app_of):
    app = app_of("hello", api_key="secret")
    described = sent(app, "GET", "/openapi.json", headers={"Authorization": "Bearer secret"}).json()
    for path, item in described["paths"].items():
        for method, operation in item.items():
            answer = sent(app, method, path.replace("{name}", "demo").replace("{id}", "x"))
            assert (answer.status_code == 401) == bool(operation["security"]), path
