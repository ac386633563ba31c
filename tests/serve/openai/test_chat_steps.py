"""Steps of the engine in the chunks of a stream, for requests that ask for them."""

import pytest
from chat_stream import events_of
from hang_guard import GUARD

BODY = {
    "messages": [{"role": "user", "content": "Count: 1, 2, 3, 4, 5, 1, 2, 3, 4, 5 and so on."}],
    "max_tokens": 40,
    "stream": True,
    "stream_options": {"include_usage": True},
}


def chunks(http, **more):
    """JSON objects of a stream."""
    answer = http.post("/v1/chat/completions", json=BODY | more, timeout=GUARD)
    assert answer.status_code == 200, answer.text
    return events_of(answer.text)


def text(found):
    """Reasoning and content of a stream."""
    deltas = [choice["delta"] for chunk in found for choice in chunk["choices"]]
    return "".join(delta.get("reasoning_content", "") + (delta.get("content") or "") for delta in deltas)


@pytest.mark.parametrize("strategy", ["plain", "lookup", "mtp:3"])
def test_records_add_up_to_the_usage(http, strategy):
    found = chunks(http, strategy=strategy, dflash={"steps": True})
    records = [chunk["dflash"] for chunk in found if "dflash" in chunk]
    usage = found[-1]["usage"]
    details = usage.get("completion_tokens_details", {})
    assert sum(record["tokens"] for record in records) == usage["completion_tokens"]
    accepted = sum(record["accepted"] for record in records)
    assert accepted == details.get("accepted_prediction_tokens", 0)
    assert sum(record["drafted"] for record in records) - accepted == details.get("rejected_prediction_tokens", 0)
    assert all(record["seconds"] > 0 and record["tokens"] for record in records)
    assert (accepted > 0) == (strategy != "plain")


def test_records_change_nothing_else(http):
    without, recorded = chunks(http), chunks(http, dflash={"steps": True})
    assert not any("dflash" in chunk for chunk in without)
    assert text(without) == text(recorded) != ""


def test_every_choice_has_its_own_records(http):
    found = chunks(http, dflash={"steps": True}, n=2, max_tokens=5)
    records = [chunk["dflash"] for chunk in found if "dflash" in chunk]
    for index in (0, 1):
        assert sum(record["tokens"] for record in records if record["index"] == index) == 5


@pytest.mark.parametrize("value", [True, {"steps": 1}])
def test_another_value_is_refused(http, value):
    answer = http.post("/v1/chat/completions", json=BODY | {"dflash": value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("dflash")
