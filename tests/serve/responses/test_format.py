"""Streams of the Responses API: their events add up to the body that is not streamed."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response
from parsing import OPENED, call, parser
from responses_stream import folded

from dflash.decode.drafters import Plain
from dflash.errors import ContextOverflow, EngineFailed, QueueFull
from dflash.generation.parsers import ParsedOutput
from dflash.serve.dialect import AnswerHead
from dflash.serve.http_errors import Problem, problem_of
from dflash.serve.responses.dialect import ResponsesDialect
from dflash.serve.responses.format import NOT_ENCRYPTED
from dflash.serve.responses.request import parse_responses
from dflash.serve.responses.store import ResponseStore

HEAD = AnswerHead("f00d", 1_700_000_000, "demo", tokenizer=None, completions=())
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
BODY = {
    "model": "demo",
    "input": "hi",
    "instructions": "Be brief.",
    "metadata": {"key": "value"},
    "include": ["reasoning.encrypted_content"],
    "tools": [
        {"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": False},
        {"type": "custom", "name": "apply_patch"},
        {"type": "namespace", "name": "agents", "description": "", "tools": [{"type": "function", "name": "stop"}]},
        {"type": "web_search"},
    ],
}
SEGMENTS = ["Let me look.\n\n", "Done.", "\n", call("get_weather", city="Ōsaka", days="2.0"), call("stop"), call("none")]
SEGMENTS += [call("apply_patch", input='*** Begin "Patch"\n+\\é😀\n')]


def steps_of(pieces, reason="stop"):
    """Deltas of a completion whose text arrives in pieces, and its stand-in."""
    reader = parser(parse_responses(BODY, ResponseStore()).tools, prompt=OPENED)
    lists = [reader.push(piece) for piece in pieces]
    lists.append(reader.finish())
    steps = [SimpleNamespace(events=events, step=SimpleNamespace(finish=None)) for events in lists]
    steps[-1].step.finish = reason
    events = [event for step in steps for event in step.events]
    session = SimpleNamespace(
        n_prompt=7, n_cached=3, n_tokens=5, n_drafted=0, n_accepted=0,
        interventions=[], warnings=[], strategy=Plain(), steps=[],
        finish_reason=reason,
    )  # fmt: skip
    return steps, SimpleNamespace(events=events, output=ParsedOutput.of(events), session=session, n_reasoning=3)


def formatted(body=BODY, store=None):
    dialect = ResponsesDialect(store)
    return dialect.format(dialect.parse(body, {}), HEAD)


def streamed(steps, completion, body=BODY, store=None):
    form = formatted(body, store)
    events = [*form.opening()]
    for step in steps:
        events += form.delta(0, step)
    events += form.closing([completion])
    assert all(event.name == event.data["type"] for event in events)
    return [event.data for event in events]


def whole(completion, body=BODY):
    return formatted(body).whole([completion])


def without_call_ids(items):
    """Items without the identifiers that the parser draws at random."""
    return [{key: value for key, value in item.items() if key != "call_id"} for item in items]


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["", "I think.\n</think>\n\n", "never ends"]),
    st.lists(st.sampled_from(SEGMENTS), max_size=5),
    st.lists(st.integers(0, 600), max_size=8),
    st.integers(0, 80),
    st.sampled_from(["stop", "length"]),
)
def test_events_add_up_to_the_whole(reasoning, segments, places, cut, reason):
    text = "".join([reasoning, *segments])
    text = text[: max(0, len(text) - cut)] if reason == "length" else text
    ends = sorted({place % (len(text) + 1) for place in places})
    pieces = [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]
    steps, completion = steps_of(pieces, reason)
    items, last = folded(streamed(steps, completion))
    body = last["response"]
    assert last["type"] == f"response.{body['status']}"
    assert items == body["output"]
    assert body == whole(completion)
    assert without_call_ids(items) == without_call_ids(whole(steps_of([text], reason)[1])["output"])
    Response.model_validate(body)
    assert len({item["id"] for item in items}) == len(items) >= 1
    calls = [item for item in items if item["type"].endswith("_call")]
    assert len(calls) == len(completion.output.tool_calls)
    assert "".join(text for item in items if item["type"] == "message" for text in [item["content"][0]["text"]]).split() == (
        completion.output.content.split()
    )


def items_of(*pieces, reason="stop", body=BODY):
    return folded(streamed(*steps_of(pieces, reason), body=body))[0]


def test_items_stand_in_the_order_of_the_text():
    items = items_of("Think.\n</think>\n\nLook.\n", call("get_weather", city="Rome", days="1"), "\n", call("stop"))
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call", "function_call"]
    assert [item["id"].partition("_")[0] for item in items] == ["rs", "msg", "fc", "fc"]
    assert {item["status"] for item in items} == {"completed"}
    assert items[0]["summary"] == [{"type": "summary_text", "text": "Think."}]
    assert items[1]["content"][0]["text"] == "Look.\n"
    assert items[2]["arguments"] == '{"city": "Rome", "days": 1}'


def test_a_call_of_a_namespace_names_it_apart():
    (item,) = items_of("</think>", call("stop"))
    assert (item["name"], item["namespace"]) == ("stop", "agents")


def test_a_custom_call_has_the_text_as_it_is():
    (item,) = items_of("</think>\n\n", call("apply_patch", input='+"é"\n'))
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "apply_patch", '+"é"\n')
    assert item["id"].startswith("ctc_")


def test_reasoning_is_encrypted_in_name_only_and_on_request():
    assert items_of("Think.\n</think>Hi.")[0]["encrypted_content"] == NOT_ENCRYPTED
    assert "encrypted_content" not in items_of("Think.\n</think>Hi.", body={**BODY, "include": []})[0]


@pytest.mark.parametrize("name", ["get_weather", "apply_patch"])
def test_a_cut_call_is_incomplete_and_its_arguments_are_never_final(name):
    key = {"get_weather": "city", "apply_patch": "input"}[name]
    steps, completion = steps_of(["</think>", call(name, **{key: "half"}).partition("alf")[0]], "length")
    events = streamed(steps, completion)
    (item,), last = folded(events)
    assert item["status"] == "incomplete"
    assert item.get("arguments", '{"city": "h') == '{"city": "h'
    assert item.get("input", "h") == "h"
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert not [event for event in events if event["type"].endswith(("arguments.done", "input.done"))]


def test_an_unclosed_call_is_incomplete_even_if_the_model_stopped():
    steps, completion = steps_of(["</think><tool_call>\n<function=get_weather>\n<parameter=city>\nRo"], "stop")
    (item,), last = folded(streamed(steps, completion))
    assert (item["status"], last["type"]) == ("incomplete", "response.completed")


def test_cut_text_and_cut_reasoning_are_incomplete():
    for text in ("Think", "</think>\n\nHal"):
        assert items_of(text, reason="length")[-1]["status"] == "incomplete"


def test_an_empty_completion_is_an_empty_message():
    (item,) = items_of("")
    assert (item["type"], item["content"][0]["text"]) == ("message", "")


def test_the_body_repeats_the_request():
    body = whole(steps_of(["Think.\n</think>\n\nHi."])[1])
    assert body["id"] == "resp_f00d"
    assert {name: body[name] for name in ("instructions", "metadata", "tools")} == {
        name: BODY[name] for name in ("instructions", "metadata", "tools")
    }
    assert (body["model"], body["tool_choice"], body["parallel_tool_calls"]) == ("demo", "auto", True)
    assert body["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 12,
    }


def test_heartbeats_are_numbered_with_the_other_events():
    steps, completion = steps_of(["</think>Hi."])
    form = formatted()
    events = [*form.opening(), form.heartbeat(), *(event for step in steps for event in form.delta(0, step))]
    events += [form.heartbeat(), *form.closing([completion])]
    (item,), _ = folded([event.data for event in events])
    assert item["content"][0]["text"] == "Hi."
    assert [event.data["type"] for event in events].count("response.in_progress") == 3


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ContextOverflow("too long"), "context_length_exceeded"),
        (QueueFull("full"), "server_error"),
        (EngineFailed("broken"), "server_error"),
        (Problem(429, "slow down", code="rate_limit_exceeded"), "rate_limit_exceeded"),
        (Problem(400, "no"), "invalid_prompt"),
    ],
)
def test_a_failure_ends_the_stream_without_the_open_item(error, code):
    steps, _ = steps_of(["Think.\n</think>\n\n", call("get_weather", city="Rome")[:-20]])
    store = ResponseStore()
    form = formatted(store=store)
    events = [*form.opening(), *(event for step in steps[:-1] for event in form.delta(0, step))]
    events += form.failure(problem_of(error))
    items, last = folded([event.data for event in events])
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == code
    assert last["response"]["status"] == "failed"
    assert [item["type"] for item in items] == ["reasoning"]
    assert last["response"]["output"] == items
    assert store.body("resp_f00d") is None


def test_a_finished_response_is_stored_unless_the_request_forbids():
    steps, completion = steps_of(["Think.\n</think>\n\nHi."])
    store = ResponseStore()
    events = streamed(steps, completion, store=store)
    assert json.loads(store.body("resp_f00d")) == events[-1]["response"]
    items = json.loads(store.conversation("resp_f00d"))
    assert items == [{"type": "message", "role": "user", "content": "hi"}, *events[-1]["response"]["output"]]
    forgetful = ResponseStore()
    streamed(steps, completion, {**BODY, "store": False}, forgetful)
    assert forgetful.body("resp_f00d") is None
