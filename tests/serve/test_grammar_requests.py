"""Requests with grammars: their errors, and how they leave other requests alone."""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from hang_guard import GUARD, wait_until

from dflash.serve.preparing.completions import ReadRequest

MESSAGES = [{"role": "user", "content": "Say hi"}]


def chat(http, **fields):
    body = {"messages": MESSAGES, "max_tokens": 2, "chat_template_kwargs": {"enable_thinking": False}}
    return http.post("/v1/chat/completions", json=body | fields)


def json_schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {
                "response_format": json_schema(
                    {"properties": {"x": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}}
                )
            },
            "/properties/x",
        ),
        ({"lark": "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(4000)) + '\nr4000: "a"'}, "rules lead through"),
        ({"lark": "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(1500)) + '\nr1500: "a"'}, "nested too deeply"),
        ({"regex": "a?" * 30_000}, "characters"),
        ({"regex": "((a{1000}){1000}){1000}"}, "write out"),
        ({"grammar": "root ::= " + '"a" ' * 20_000}, "names, signs and texts|CPU time"),
    ],
)
def test_hostile_grammars_get_400(http, fields, message):
    answer = chat(http, **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, next(iter(fields)))
    assert any(part in error["message"] for part in message.split("|")), error
    assert chat(http, regex="yes|no").status_code == 200


def test_grammars_that_take_long_delay_no_other_request(server, http, monkeypatch):
    """However many wait, a request without a grammar is read and answered."""
    entered, may_go = threading.Semaphore(0), threading.Event()
    compile_ = ReadRequest.with_grammars

    def slow(self):
        entered.release()
        assert may_go.wait(GUARD)
        return compile_(self)

    monkeypatch.setattr(ReadRequest, "with_grammars", slow)
    api = server.app.state.api
    with ThreadPoolExecutor(6) as threads, httpx.Client(base_url=server.url, timeout=GUARD) as other:
        waiting = [threads.submit(chat, other, regex="yes|no") for _ in range(6)]
        try:
            assert entered.acquire(timeout=GUARD)
            wait_until(lambda: api.preparing == 6)
            assert chat(http).status_code == 200
            strict = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
            assert chat(http, tools=[strict]).status_code == 200
            assert not any(one.done() for one in waiting)
        finally:
            may_go.set()
        assert {one.result().status_code for one in waiting} == {200}


UNIQUE = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}
NEVER = {"type": "object", "properties": {"a": {"type": "string", "minLength": 3, "maxLength": 1}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("url", "name", "body_of"),
    [
        ("/v1/chat/completions", "response_format", lambda schema: {"response_format": json_schema(schema)}),
        ("/v1/chat/completions", "json_schema", lambda schema: {"json_schema": schema}),
        ("/v1/completions", "guided_json", lambda schema: {"guided_json": schema}),
        ("/v1/completions", "structured_outputs.json", lambda schema: {"structured_outputs": {"json": schema}}),
        ("/v1/messages", "output_config.format", lambda schema: {"output_config": {"format": form(schema)}}),
        ("/v1/messages", "output_format", lambda schema: {"output_format": form(schema)}),
        ("/v1/responses", "text.format", lambda schema: {"text": {"format": {"name": "x", **form(schema)}}}),
    ],
)
def test_messages_about_a_schema_begin_with_the_field_that_held_it(http, url, name, body_of):
    limit = {"max_output_tokens": 16} if url == "/v1/responses" else {"max_tokens": 16}
    limit |= {"prompt": "Say"} if url == "/v1/completions" else {"input" if "responses" in url else "messages": MESSAGES}
    noted = http.post(url, json={**limit, **body_of(UNIQUE)}).json()
    assert f"{name}: #/uniqueItems is not enforced" in noted["warnings"]
    refused = http.post(url, json={**limit, **body_of(NEVER)})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith(f"{name}: "), refused.text


def form(schema):
    return {"type": "json_schema", "schema": schema}
