"""A client of streamed chat completions that believes only the chunks."""

import json


def events_of(text):
    """Return the JSON events of a stream; asserts that the last event is ``[DONE]``."""
    *lines, done = [line for line in text.split("\n\n") if line]
    assert done == "data: [DONE]"
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def folded(events, index=0):
    """Return the message and the finish reason that the chunks of a choice add up to; asserts their form and order."""
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["finish_reason"] is None for choice in choices] == [True] * (len(choices) - 1) + [False]
    texts, calls = {"content": "", "reasoning_content": ""}, []
    for choice in choices[1:]:
        delta = dict(choice["delta"])
        for call in delta.pop("tool_calls", []):
            _add_call(calls, call)
        for name, text in delta.items():
            texts[name] += text
    message = {"role": "assistant", "content": texts["content"]}
    if texts["reasoning_content"]:
        message["reasoning_content"] = texts["reasoning_content"]
    if calls:
        message.update(content=texts["content"] or None, tool_calls=calls)
    return message, choices[-1]["finish_reason"]


def _add_call(calls, call):
    if call["index"] == len(calls):
        assert set(call) == {"index", "id", "type", "function"}
        assert call["id"]
        assert call["function"] == {"name": call["function"]["name"], "arguments": ""}
        calls.append({"id": call["id"], "type": call["type"], "function": dict(call["function"])})
    else:
        assert set(call) == {"index", "function"}
        assert set(call["function"]) == {"arguments"}
        assert call["index"] == len(calls) - 1
        calls[-1]["function"]["arguments"] += call["function"]["arguments"]
