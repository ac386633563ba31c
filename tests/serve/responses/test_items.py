"""Input items as chat messages."""

import json

import pytest

from dflash.generation.messages.fields import FieldError, Fields
from dflash.serve.responses.items import messages_of
from dflash.serve.responses.tools import Tools, parse_tools

NO_TOOLS = Tools()
CALL = {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": '{"path": 1.0}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "README.md"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "I list."}]}


def said(role, text, **item):
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}], **item}


def test_a_turn_of_reasoning_text_and_calls_is_one_message():
    items = [said("user", "go"), REASONING, said("assistant", "Look."), CALL, {**CALL, "call_id": "c2"}, OUTPUT]
    user, turn, result = messages_of(items, NO_TOOLS)
    assert user == {"role": "user", "content": "go"}
    function = {"name": "ls", "arguments": '{"path": 1.0}'}
    assert turn == {
        "role": "assistant",
        "reasoning_content": "I list.",
        "content": "Look.",
        "tool_calls": [{"id": call, "type": "function", "function": function} for call in ("c1", "c2")],
    }
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "README.md"}


def test_text_after_a_call_stays_in_its_turn():
    turn, result = messages_of([said("assistant", "Look. "), CALL, said("assistant", "Done."), OUTPUT], NO_TOOLS)
    assert (turn["content"], len(turn["tool_calls"]), result["role"]) == ("Look. Done.", 1, "tool")


def test_turns_that_follow_each_other_stay_apart():
    messages = messages_of([said("assistant", "one"), said("assistant", "two"), REASONING, CALL], NO_TOOLS)
    assert [message.get("content") for message in messages] == ["one", "two", None]
    again = messages_of([CALL, OUTPUT, CALL, OUTPUT], NO_TOOLS)
    assert [message["role"] for message in again] == ["assistant", "tool"] * 2


def test_items_without_type_and_content_as_a_string():
    items = [{"role": role, "content": role} for role in ("developer", "system", "user", "assistant")]
    assert messages_of(items, NO_TOOLS) == items


def test_several_parts_stay_parts():
    parts = [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]
    message, result = messages_of([{"role": "user", "content": parts}, {**OUTPUT, "output": parts}], NO_TOOLS)
    assert message["content"] == result["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"content": [{"type": "reasoning_text", "text": "raw"}]}, "raw"),
        ({"content": None}, "I list."),
        ({"content": [], "summary": [{"type": "summary_text", "text": text} for text in "ab"]}, "a\n\nb"),
    ],
)
def test_reasoning_comes_from_its_content_or_its_summary(fields, text):
    assert messages_of([{**REASONING, **fields}], NO_TOOLS) == [{"role": "assistant", "reasoning_content": text}]


def test_a_message_that_is_only_reasoning_is_reasoning():
    (turn,) = messages_of([said("assistant", "<think>\nI list.\n</think>"), said("assistant", "Look."), CALL], NO_TOOLS)
    assert (turn["reasoning_content"], turn["content"], len(turn["tool_calls"])) == ("I list.", "Look.", 1)
    for text in ("<think>\na\n</think>\nb", "<think>", "</think>", "<think>a</think>b</think>", "a<think>b</think>"):
        assert messages_of([said("assistant", text)], NO_TOOLS) == [{"role": "assistant", "content": text}]


def test_reasoning_that_is_only_encrypted_is_ignored():
    assert messages_of([{"type": "reasoning", "summary": [], "encrypted_content": "b3BhcXVl"}], NO_TOOLS) == []


@pytest.mark.parametrize("kind", ["web_search_call", "tool_search_output", "compaction", "mcp_list_tools"])
def test_items_of_other_servers_are_skipped(kind):
    assert messages_of([said("user", "hi"), {"type": kind, "id": "x"}], NO_TOOLS) == [{"role": "user", "content": "hi"}]


def test_custom_calls_are_calls_with_one_argument():
    text = 'a "quoted"\n+é'
    items = [
        {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": text},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"},
    ]
    call, result = messages_of(items, NO_TOOLS)
    function = call["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("apply_patch", {"input": text})
    assert result["content"] == "ok"


def test_calls_of_a_namespace_have_the_name_that_the_model_sees():
    offered = [
        {"type": "function", "name": "stop"},
        {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "stop"}]},
    ]
    tools = parse_tools(Fields({"tools": offered}))
    items = [{**CALL, "name": "stop"}, {**CALL, "name": "stop", "namespace": "agents"}, {**CALL, "namespace": "gone"}]
    (turn,) = messages_of(items, tools)
    assert [call["function"]["name"] for call in turn["tool_calls"]] == ["stop", "agents.stop", "ls"]


@pytest.mark.parametrize(
    ("item", "field", "words"),
    [
        ("hi", "input[1]", "JSON object"),
        ({}, "input[1].type", "required"),
        ({"type": "message", "content": "hi"}, "input[1].role", "required"),
        ({"role": "robot", "content": "hi"}, "input[1].role", "one of"),
        ({"role": "user", "content": 5}, "input[1].content", "array of parts"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[1].content[0].type", "only text"),
        ({"role": "user", "content": [{"type": "magic"}]}, "input[1].content[0].type", "not known"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[1].content[0].text", "required"),
        ({"type": "item_reference", "id": "msg_1"}, "input[1].type", "previous_response_id"),
        ({**CALL, "name": None}, "input[1].name", "required"),
        ({**CALL, "call_id": None}, "input[1].call_id", "required"),
        ({**CALL, "arguments": {}}, "input[1].arguments", "string"),
    ],
)
def test_what_can_not_be_read_is_refused_by_name(item, field, words):
    with pytest.raises(FieldError, match=words) as caught:
        messages_of([said("user", "hi"), item], NO_TOOLS)
    assert caught.value.field == field
