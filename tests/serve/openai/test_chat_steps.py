"""Steps of the engine in the chunks of a stream, for requests that ask for them."""

from types import SimpleNamespace

import pytest
from chat_stream import events_of
from hang_guard import GUARD
from in_process import sent

from dflash.decode.drafters import Strategy
from dflash.decode.step import Step
from dflash.serve.admin.used_strategies import UsedStrategies
from dflash.serve.openai.step_records import StepTokens

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


@pytest.mark.parametrize("strategy", ["plain", "lookup", "ddtree:22"])
def test_tokens_of_records_spell_the_completion(http, strategy):
    records = [
        chunk["dflash"]
        for chunk in chunks(http, strategy=strategy, dflash={"steps": True, "tokens": True}, ignore_eos=True)
        if "dflash" in chunk
    ]
    plain = chunks(http, ignore_eos=True, chat_template_kwargs={"enable_thinking": True})
    raw = "".join(piece[1] for record in records for piece in record["pieces"] if piece[2:] != ["control"])
    assert text(plain).strip() in raw.replace("</think>", "")
    for record in records:
        pieces, draft, path = record["pieces"], record["draft"], record["path"]
        assert len(pieces) == record["tokens"]
        assert len(draft) == record["drafted"]
        assert len(path) == record["accepted"]
        accepted = [piece[1] for piece in pieces if piece[0] == "accepted"]
        assert [draft[node][0] for node in path] == accepted
        assert [draft[node][1] for node in path] == [-1, *path][: len(path)]
        assert all(-1 <= parent < index for index, (_, parent) in enumerate(draft))
    assert any(record["path"] for record in records) == (strategy != "plain")


def test_a_character_belongs_to_the_token_that_completes_it(lm):
    tokens = StepTokens(lm.tokenizer)
    ids = lm.tokenizer.encode("\U0001f9ca")
    assert len(ids) > 1
    written = [tokens.of(Step([token]))["pieces"] for token in ids]
    assert [piece for ((_, piece),) in written] == [""] * (len(ids) - 1) + ["\U0001f9ca"]


def test_the_first_completion_of_a_strategy_is_a_warm_up(app_of):
    app = app_of("hello")

    def warm():
        body = {**BODY, "dflash": {"steps": True}}
        answer = sent(app, "POST", "/v1/chat/completions", json=body)
        return {chunk["dflash"].get("warm_up", False) for chunk in events_of(answer.text) if "dflash" in chunk}

    assert warm() == {True}
    assert warm() == {False}


def test_options_of_a_strategy_need_no_new_warm_up():
    used = UsedStrategies()
    ended, running = Step([1], finish="stop"), Step([1])
    used(
        [(SimpleNamespace(strategy=Strategy("lookup:3")), ended), (SimpleNamespace(strategy=Strategy("mtp")), running)], 0.0
    )
    found = {name: Strategy(name) in used for name in ("lookup", "lookup:5", "mtp", "plain", "first(lookup, plain)")}
    assert found == {"lookup": True, "lookup:5": True, "mtp": False, "plain": False, "first(lookup, plain)": False}


@pytest.mark.parametrize("value", [True, {"steps": 1}, {"tokens": "all"}])
def test_another_value_is_refused(http, value):
    answer = http.post("/v1/chat/completions", json=BODY | {"dflash": value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("dflash")
