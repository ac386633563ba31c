"""A hundred calls with hostile values through each API, streamed and whole, with and without reasoning: all validate."""

import json
import random

import pytest
from in_process import sent
from jsonschema import Draft202012Validator
from serve_fakes import ScriptedEngine
from strict_tools import hostile_text
from three_apis import CHAT, MESSAGES, PATHS, RESPONSES, body_of, events_of

N = 17
"""Calls of each API, streamed or not: 102 in all."""

SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "q": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "n": {"type": "integer"},
        "deep": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["path"],
    "additionalProperties": False,
}


def tools(path):
    if path == MESSAGES:
        return [{"name": "go", "input_schema": SCHEMA, "strict": True}]
    inner = {"name": "go", "parameters": SCHEMA, "strict": True}
    return [{"type": "function", **inner} if path == RESPONSES else {"type": "function", "function": inner}]


def arguments(rng):
    values = {
        "q": rng.choice([None, hostile_text(rng)]),
        "n": rng.randint(-9, 9),
        "deep": {hostile_text(rng): hostile_text(rng)},
    }
    chosen = {key: value for key, value in values.items() if rng.random() < 0.6}
    return {
        "path": hostile_text(rng),
        **{key: value for key, value in chosen.items() if value not in ("null", "None", "NULL", "Null")},
    }


def written(values):
    """A call as the chat template writes it."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    body = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
    return f"<tool_call>\n<function=go>\n{body}</function>\n</tool_call>"


def pieces(text, rng):
    ends = sorted(rng.choices(range(len(text) + 1), k=4))
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def called(path, answer, *, stream):
    """Name and arguments of the only call in an answer."""
    if not stream:
        body = answer.json()
        if path == CHAT:
            (call,) = body["choices"][0]["message"]["tool_calls"]
            return call["function"]["name"], json.loads(call["function"]["arguments"])
        items = body["output"] if path == RESPONSES else body["content"]
        (call,) = [each for each in items if each["type"] in ("function_call", "tool_use")]
        return call["name"], json.loads(call["arguments"]) if path == RESPONSES else call["input"]
    events = events_of(answer.text)
    if path == CHAT:
        deltas = [each for event in events for choice in event["choices"] for each in choice["delta"].get("tool_calls", [])]
        return deltas[0]["function"]["name"], json.loads("".join(each["function"]["arguments"] for each in deltas))
    if path == RESPONSES:
        (done,) = [event for event in events if event["type"] == "response.function_call_arguments.done"]
        (item,) = [
            event["item"] for event in events if event["type"] == "response.output_item.done" and "name" in event["item"]
        ]
        return item["name"], json.loads(done["arguments"])
    (start,) = [event["content_block"] for event in events if event.get("content_block", {}).get("type") == "tool_use"]
    parts = [event["delta"]["partial_json"] for event in events if event.get("delta", {}).get("type") == "input_json_delta"]
    return start["name"], json.loads("".join(parts))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", PATHS)
def test_hostile_values_arrive_as_they_were_written(app_of, path, stream):
    rng = random.Random(path)
    for i in range(N):
        values = arguments(rng)
        lead = ["Hm. </think>\n\n", "Hm <tool_call> hm.\n</think>\n\n", "I call it.\n", "</think>\n\nNow:\n"][i % 4]
        app = app_of(*pieces(lead + written(values), rng))
        answer = sent(app, "POST", path, json=body_of(path, tools=tools(path), stream=stream))
        assert answer.status_code == 200, answer.text
        name, found = called(path, answer, stream=stream)
        assert (name, found) == ("go", values)
        Draft202012Validator(SCHEMA).validate(found)
        app.engine_thread.close()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", PATHS)
def test_calls_of_functions_that_were_not_offered(app_of, path, stream):
    text = "</think>\n\n" + written({"path": "a"}).replace("=go>", "=went>")
    for settings, wanted in (({}, True), ({"offered_tools_only": True}, False)):
        app = app_of(text, **settings)
        answer = sent(app, "POST", path, json=body_of(path, tools=tools(path), stream=stream))
        assert answer.status_code == 200
        assert ("<function=went>" in answer.text) is not wanted
        if wanted:
            assert called(path, answer, stream=stream) == ("went", {"path": "a"})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", PATHS)
def test_a_run_that_is_cut_in_the_head_of_a_call_shows_no_tag(app_of, path, stream):
    class Cut(ScriptedEngine):
        def __init__(self, tokenizer, script):
            super().__init__(tokenizer, script, finish="length")

    for lead in ("Hm. </think>\n\nNow. ", "Hm. "):
        app = app_of(f"{lead}<tool_call>\n<function", engine=Cut)
        answer = sent(app, "POST", path, json=body_of(path, tools=tools(path), stream=stream))
        assert "tool_call>" not in answer.text
        assert "function=" not in answer.text
        assert "<function" not in answer.text


@pytest.mark.parametrize("path", PATHS)
def test_answers_say_what_is_not_enforced(app_of, path):
    inner = {"type": "object", "properties": {"q": {"type": "array", "uniqueItems": True}}, "required": ["q"]}
    offered = json.loads(json.dumps(tools(path)).replace('"strict": true', '"strict": false'))
    holder = offered[0] if path != CHAT else offered[0]["function"]
    holder["input_schema" if path == MESSAGES else "parameters"] = inner
    choice = {"type": "any"} if path == MESSAGES else "required"
    for stream in (False, True):
        app = app_of(written({"q": [1]}))
        answer = sent(app, "POST", path, json=body_of(path, tools=offered, tool_choice=choice, stream=stream))
        assert answer.text.count("tools: go: #/properties/q/uniqueItems is not enforced") == 1
