"""A client of the Responses API that believes only the events, and strict reading with the SDK's types."""

import json
from functools import cache

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

TERMINAL = ("response.completed", "response.incomplete", "response.failed")


@cache
def _event_type():
    return TypeAdapter(ResponseStreamEvent)


def folded(events):
    """Return the items that the deltas of a stream add up to, and the terminal event; checks the order of events."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert [event["type"] in TERMINAL for event in events] == [False] * (len(events) - 1) + [True]
    items, done = [], []
    for event in events[2:-1]:
        _event_type().validate_python(event)
        kind = event["type"]
        if kind == "response.in_progress":  # a heartbeat
            continue
        if kind == "response.output_item.added":
            assert event["output_index"] == len(items) == len(done), "an item opens after the end of the one before"
            assert event["item"].get("status") == "in_progress"
            items.append(json.loads(json.dumps(event["item"])))
            continue
        item = items[event["output_index"]]
        assert event["output_index"] == len(items) - 1
        if kind == "response.output_item.done":
            assert event["item"] == {**item, "status": event["item"]["status"]}
            item["status"] = event["item"]["status"]
            done.append(event["item"])
            continue
        assert event["item_id"] == item["id"]
        _add(item, kind.removeprefix("response."), event)
    error = events[-1]["response"]["error"]
    if error is None or error["code"] != "context_length_exceeded":  # sent by OpenAI, but not among the SDK's values
        Response.model_validate(events[-1]["response"])
    return done, events[-1]


def _add(item, kind, event):
    match kind:
        case "content_part.added":
            assert event["content_index"] == len(item["content"])
            item["content"].append(dict(event["part"]))
        case "reasoning_summary_part.added":
            assert event["summary_index"] == len(item["summary"])
            item["summary"].append(dict(event["part"]))
        case "output_text.delta":
            item["content"][event["content_index"]]["text"] += event["delta"]
        case "reasoning_summary_text.delta":
            item["summary"][event["summary_index"]]["text"] += event["delta"]
        case "function_call_arguments.delta":
            item["arguments"] += event["delta"]
        case "custom_tool_call_input.delta":
            item["input"] += event["delta"]
        case "output_text.done":
            assert event["text"] == item["content"][event["content_index"]]["text"]
        case "reasoning_summary_text.done":
            assert event["text"] == item["summary"][event["summary_index"]]["text"]
        case "content_part.done":
            assert event["part"] == item["content"][event["content_index"]]
        case "reasoning_summary_part.done":
            assert event["part"] == item["summary"][event["summary_index"]]
        case "function_call_arguments.done":
            assert (event["name"], event["arguments"]) == (item["name"], item["arguments"])
        case "custom_tool_call_input.done":
            assert event["input"] == item["input"]
        case _:
            raise AssertionError(f"unexpected {kind}")
    if kind.endswith(".delta"):
        assert event["delta"], "empty deltas are not sent"
