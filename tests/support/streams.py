"""Reading of event streams."""

import json


def first_text(lines):
    """Read until the first event with text; the sequence runs then.

    `lines` is the iterator of the response. The caller keeps it: httpx closes the connection when it is collected.
    """
    return next(line for line in lines if '"text":"' in line and '"text":""' not in line)


def named_events(answer):
    """Return the events of a stream of the Responses or Messages API; asserts that each is named by its type."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events
